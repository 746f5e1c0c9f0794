// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/engine/data_slots.hpp"
#include "runtime/engine/emulation.hpp"
#include "runtime/engine/evaluation.hpp"
#include "runtime/engine/finite_check.hpp"
#include "runtime/engine/gathering.hpp"
#include "runtime/engine/meter.hpp"
#include "runtime/engine/rank_tasks.hpp"
#include "runtime/engine/step_data.hpp"
#include "runtime/engine/submitter.hpp"
#include "runtime/engine/task_graph.hpp"
#include "runtime/engine/task_progress.hpp"
#include "runtime/engine/task_runner.hpp"
#include "runtime/engine/trained_state.hpp"
#include "runtime/engine/watchdog.hpp"
#include "runtime/session/gpu_memory.hpp"
#include "runtime/session/session.hpp"
#include "starpipe/model/dataset.hpp"
#include "starpipe/model/network.hpp"
#include "starpipe/model/optimizer.hpp"
#include "starpipe/plan/simulate/costs.hpp"
#include "starpipe/runtime/config/config.hpp"

namespace starpipe::runtime {

/// A step as it ran.
struct StepResult {
  std::vector<float> losses;  ///< by micro-batch; on every rank; none of emulated jobs
  double seconds = 0;         ///< from submission to the last update, this rank's clock
  double submission = 0;      ///< the part of it in which this rank's tasks were inserted
  bool prefetch = true;       ///< transfers overlap computing, as in plan::Costs
  std::optional<double> gradient_norm = std::nullopt;  ///< before clipping; on every rank; none when emulated
  double learning_rate = 0;                            ///< of the step's update; on every rank
  bool clipped = false;                                ///< the norm was above `training.clip`; on every rank
  /// The first value that is not finite, if the step's update was skipped for it; on every rank.
  std::optional<NonFiniteOrigin> skipped_for = std::nullopt;
  std::vector<JobRecord> jobs;        ///< all ranks' jobs, on rank 0's clock; on rank 0 only
  std::vector<WorkerRecord> workers;  ///< by logical worker; on rank 0 only
};

/// Trains one network under one schedule: runs the step's task graph on StarPU and StarPU-MPI. All member
/// functions are collective: every rank of the session calls them in the same order, from one thread.
///
/// The engine owns the parts of a step and composes them; the parts do the work. A rank holds memory for the
/// data that it owns and, for as long as its tasks read them, for the data that it received.
class Engine {
 public:
  /// `parameters`: start values of each stage, on every rank. `config`: `timeout` and `window`. `emulated`:
  /// jobs and transfers are waits of these lengths, and kernels do not run. On SimGrid it is required: the
  /// durations of jobs on simulated GPUs. `nonfinite`: how `run_step` treats infinity and NaN. `evaluated`:
  /// micro-batches of each `evaluate`; 0: there is none. References and `emulated` must outlive the engine.
  Engine(const Session& session, const plan::Schedule& schedule, const model::Network& network,
         const model::OptimizerConfig& optimizer, const std::vector<std::vector<float>>& parameters,
         const RuntimeConfig& config, const plan::Costs* emulated = nullptr,
         NonFinitePolicy nonfinite = NonFinitePolicy::stop, int evaluated = 0);
  /// Collective. Waits for all tasks of this rank, then for the other ranks.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Runs one optimizer step, number `step` from 0, which also decides the learning rate. Returns when all
  /// ranks are done. Throws RunFailure, on every rank, when a value is not finite and the run is to stop, and
  /// with status 2 when `data` throws InputError on some rank; messages count steps from 1. After such a step
  /// the weights are of no use. A step that is skipped for such a value does not count as a step of the
  /// optimizer.
  StepResult run_step(int step, const model::Dataset& data);

  /// Runs forward passes on `data` with the weights after `steps` steps, between two steps. It does not
  /// change data that the steps read. Not for emulated jobs. Throws RunFailure as Evaluation does, and with
  /// `training.nonfinite: stop` when a loss is infinity or NaN.
  EvaluationResult evaluate(int steps, const model::Dataset& data);
  /// Returns the tasks of an evaluation; nullptr before the first one.
  [[nodiscard]] const TaskGraph* evaluation_graph() const {
    return evaluation_ ? &evaluation_->graph() : nullptr;
  }

  /// The parameters after the last step, and that step's mean weight gradient before clipping, by set
  /// (Network::sets()), from each set's first holder. On rank 0 only.
  [[nodiscard]] std::vector<std::vector<float>> parameters() const { return gathering_.parameters(); }
  [[nodiscard]] std::vector<std::vector<float>> gradients() const { return gathering_.gradients(); }

  /// Returns the number of the optimizer's updates so far: AdamW's t.
  [[nodiscard]] int updates() const { return updates_; }
  /// Not collective. The trained numbers that this rank hands out: see TrainedState::read.
  void read_state(const StateReader& read) const { state_.read(read); }
  /// Not collective. Call it before the first step. Training then continues from other numbers than the start
  /// values, after `updates` updates. See TrainedState::write.
  void restore(int updates, const StateWriter& write) {
    updates_ = updates;
    state_.write(write);
  }

  /// Collective. Returns, on every rank, the first stage with infinity or NaN in its weights after the last
  /// step: no pass has read these weights, so no step has found the value. Returns nullopt if there is none,
  /// if jobs are emulated, and with `training.nonfinite: continue`.
  [[nodiscard]] std::optional<int> first_nonfinite_stage() const;

  /// Returns the memory that this run has taken of all ranks' GPUs so far; on rank 0 only.
  [[nodiscard]] std::vector<GpuMemory> gpu_memory() const;

  [[nodiscard]] const TaskGraph& graph() const { return graph_; }

  /// Returns the bytes that this rank has sent since it started, by StarPU-MPI's count. All zero when its
  /// statistics are off (STARPU_MPI_STATS=0).
  [[nodiscard]] std::uint64_t bytes_sent_by_starpu() const;

 private:
  // For the watchdog.
  [[nodiscard]] RankStatus status() const;
  /// Collective. The first value of the step that is not finite, if the run looks for such values.
  [[nodiscard]] std::optional<NonFiniteOrigin> first_nonfinite(
      const std::optional<GradientNorm>& gradient) const;

  const Session& session_;
  const plan::Schedule& schedule_;
  const model::Network& network_;
  model::OptimizerConfig optimizer_;
  NonFinitePolicy nonfinite_;
  int updates_ = 0;  // of the optimizer
  TaskGraph graph_;
  RankTasks tasks_;
  Meter meter_;
  GpuMemoryMeters gpu_memory_;
  std::optional<int> window_;  // most tasks that this rank has submitted and not finished
  DataSlots slots_;
  StepData data_;
  Gathering gathering_;
  TrainedState state_;
  ExpectedTimes expected_;
  bool computes_;                         // kernels run
  std::unique_ptr<Emulation> emulation_;  // none when kernels run, and on SimGrid
  FiniteCheck finite_;
  TaskProgress progress_;
  Watched watched_;
  std::unique_ptr<Evaluation> evaluation_;  // from the first one on
  RunWatch watch_;                          // may look at the evaluation
  TaskRunner runner_;
  WorkerOrders next_order_;
  Submitter submitter_;
  RuntimeConfig config_;
};

}  // namespace starpipe::runtime
