// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "model/weights.hpp"
#include "runtime/engine/finite_check.hpp"
#include "runtime/engine/gathering.hpp"
#include "runtime/engine/step_data.hpp"
#include "runtime/engine/step_run.hpp"
#include "runtime/engine/task_graph.hpp"
#include "runtime/engine/watchdog.hpp"
#include "runtime/session/gpu_memory.hpp"
#include "runtime/session/session.hpp"
#include "starpipe/model/dataset.hpp"
#include "starpipe/model/network.hpp"
#include "starpipe/model/optimizer.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
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

/// The result of an evaluation, on every rank.
struct EvaluationResult {
  std::vector<float> losses;  ///< by micro-batch
  double loss = 0;            ///< their mean: added in their order, in fp64
  double seconds = 0;         ///< this rank's clock
};

/// Throws RunFailure if a loss is infinity or NaN. `steps`: trained before; nullopt in a run that does not
/// train.
void require_finite_losses(const EvaluationResult& result, std::optional<int> steps);

/// Runs the forward passes of a network on data that it is not trained on: the schedule's w and order, any
/// number of micro-batches, and no stash. It only reads the weights, so it does not change the training run
/// around it. All member functions are collective. The references must outlive this.
class Evaluator {
 public:
  /// Evaluates the weights of `training`. `watch`: of the training run.
  Evaluator(const Session& session, const plan::Schedule& schedule, const model::Network& network,
            const StepData& training, const RuntimeConfig& config, int microbatches, RunWatch& watch);
  /// Evaluates weights without a training run. Each rank calls `weights` for the sets that its workers read.
  /// Throws InputError, on every rank, if `weights` does so on one of them.
  Evaluator(const Session& session, const plan::Schedule& schedule, const model::Network& network,
            const model::StartValues& weights, const RuntimeConfig& config, int microbatches);

  /// Runs the first micro-batches of `data`'s step 0, the same ones each time. `steps`: trained before, for
  /// messages; nullopt in a run that does not train. The run's watch looks at these tasks from now on. Throws
  /// RunFailure with status 2, on every rank, when some rank cannot read the data.
  EvaluationResult run(const model::Dataset& data, std::optional<int> steps = std::nullopt);

  [[nodiscard]] const TaskGraph& graph() const { return run_.graph(); }

 private:
  plan::Schedule schedule_;  // the forward passes
  StepRun run_;
  std::optional<RunWatch> own_watch_;  // of a run that does not train
  RunWatch& watch_;
};

/// Trains one network under one schedule: runs the step's task graph on StarPU and StarPU-MPI. All member
/// functions are collective: every rank of the session calls them in the same order, from one thread.
///
/// A rank holds memory for the data that it owns and, for as long as its tasks read them, for the data that
/// it received.
class Engine {
 public:
  /// `start`: makes start values; each rank calls it for the sets that its workers hold. Empty with
  /// `emulated`. Throws InputError, on every rank, if `start` does so on one. `config`: `timeout` and
  /// `window`. `emulated`: jobs and transfers are waits of these lengths, and kernels do not run. On SimGrid
  /// it is required: the durations of jobs on simulated GPUs. `nonfinite`: how `run_step` treats infinity and
  /// NaN. `evaluated`: micro-batches of each `evaluate`; 0: there is none. References and `emulated` must
  /// outlive the engine.
  Engine(const Session& session, const plan::Schedule& schedule, const model::Network& network,
         const model::OptimizerConfig& optimizer, const model::StartValues& start,
         const RuntimeConfig& config, const plan::Costs* emulated = nullptr,
         NonFinitePolicy nonfinite = NonFinitePolicy::stop, int evaluated = 0);

  /// Runs one optimizer step, number `step` from 0, which also decides the learning rate. Returns when all
  /// ranks are done. Throws RunFailure, on every rank, when a value is not finite and the run is to stop, and
  /// with status 2 when `data` throws on some rank; messages count steps from 1. After such a step
  /// the weights are of no use. A step that is skipped for such a value does not count as a step of the
  /// optimizer.
  StepResult run_step(int step, const model::Dataset& data);

  /// Runs forward passes on `data` with the weights after `steps` steps, between two steps. It does not
  /// change data that the steps read. Not for emulated jobs. Throws RunFailure as Evaluator does, and with
  /// `training.nonfinite: stop` when a loss is infinity or NaN.
  EvaluationResult evaluate(int steps, const model::Dataset& data);
  /// Returns the tasks of an evaluation; nullptr before the first one.
  [[nodiscard]] const TaskGraph* evaluation_graph() const {
    return evaluator_ ? &evaluator_->graph() : nullptr;
  }

  /// Returns the parameters after the last step, and that step's mean weight gradient before clipping, by set
  /// (Network::sets()), from each set's first holder. On rank 0 only.
  [[nodiscard]] std::vector<std::vector<float>> parameters() const { return run_.gathering().parameters(); }
  [[nodiscard]] std::vector<std::vector<float>> gradients() const { return run_.gathering().gradients(); }

  /// Calls `use` on rank 0 with each parameter, see Gathering::read_parameters.
  void read_parameters(const ParameterReader& use) const { run_.gathering().read_parameters(use); }

  /// Returns the number of the optimizer's updates so far: AdamW's t.
  [[nodiscard]] int updates() const { return updates_; }
  /// Not collective. The trained numbers that this rank hands out: see Gathering::read_state.
  void read_state(const StateReader& read) const { run_.gathering().read_state(read); }
  /// Not collective. See Gathering::read_own_parameters.
  void read_own_parameters(const ParameterReader& read) const { run_.gathering().read_own_parameters(read); }
  /// Not collective. Call it before the first step. Training then continues from other numbers than the start
  /// values, after `updates` updates. See Gathering::write_state.
  void restore(int updates, const StateWriter& write) {
    updates_ = updates;
    run_.gathering().write_state(write);
  }

  /// Collective. Returns, on every rank, the first stage with infinity or NaN in its weights after the last
  /// step: no pass has read these weights, so no step has found the value. Returns nullopt if there is none,
  /// if jobs are emulated, and with `training.nonfinite: continue`.
  [[nodiscard]] std::optional<int> first_nonfinite_stage() const;

  /// Returns the memory that this run has taken of all ranks' GPUs so far; on rank 0 only.
  [[nodiscard]] std::vector<GpuMemory> gpu_memory() const;

  [[nodiscard]] const TaskGraph& graph() const { return run_.graph(); }

  /// Returns the bytes that this rank has sent since it started, by StarPU-MPI's count. All zero when its
  /// statistics are off (STARPU_MPI_STATS=0).
  [[nodiscard]] std::uint64_t bytes_sent_by_starpu() const;

 private:
  // Completes what single ranks do not know of a step with copies, on rank 0: peaks follow from the times of
  // all jobs. A copy to another worker begins when nothing but the way there holds it; its memory is freed on
  // one worker and taken on another one. On SimGrid a rank learns of a GPU's task only at its end.
  void complete_copies(StepResult& result) const;

  /// Collective. Returns the first value of the step that is not finite, if the run looks for such values.
  [[nodiscard]] std::optional<NonFiniteOrigin> first_nonfinite(
      const std::optional<GradientNorm>& gradient) const;

  const Session& session_;
  const plan::Schedule& schedule_;
  const model::Network& network_;
  model::OptimizerConfig optimizer_;
  RuntimeConfig config_;
  NonFinitePolicy nonfinite_;
  int updates_ = 0;  // of the optimizer
  bool computes_;    // kernels run
  StepRun run_;
  std::unique_ptr<Evaluator> evaluator_;  // from the first evaluation on
  RunWatch watch_;                        // last: its thread looks at the members above
};

}  // namespace starpipe::runtime
