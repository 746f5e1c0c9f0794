// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/engine/data_slots.hpp"
#include "runtime/engine/finite_check.hpp"
#include "runtime/engine/gathering.hpp"
#include "runtime/engine/meter.hpp"
#include "runtime/engine/rank_tasks.hpp"
#include "runtime/engine/step_data.hpp"
#include "runtime/engine/submitter.hpp"
#include "runtime/engine/task_graph.hpp"
#include "runtime/engine/task_progress.hpp"
#include "runtime/engine/task_runner.hpp"
#include "runtime/engine/watchdog.hpp"
#include "runtime/session/gpu_memory.hpp"
#include "runtime/session/session.hpp"
#include "starpipe/model/dataset.hpp"
#include "starpipe/model/network.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/runtime/config/config.hpp"

namespace starpipe::runtime {

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
/// around it. It composes parts as Engine does. All member functions are collective.
class Evaluation {
 public:
  /// The parts of StarPU that a run has once.
  struct Shared {
    GpuMemoryMeters& gpu_memory;
    WorkerOrders& next_order;
  };

  /// Evaluates the weights of `training`. The references must outlive this.
  Evaluation(const Session& session, const plan::Schedule& schedule, const model::Network& network,
             const StepData& training, const RuntimeConfig& config, int microbatches, const Shared& shared);
  /// Evaluates `parameters`, by set (Network::sets()), on every rank.
  Evaluation(const Session& session, const plan::Schedule& schedule, const model::Network& network,
             const std::vector<std::vector<float>>& parameters, const RuntimeConfig& config, int microbatches,
             const Shared& shared);

  /// Runs the first micro-batches of `data`'s step 0, the same ones each time. `steps`: trained before, for
  /// messages; nullopt in a run that does not train. `watch` looks at these tasks from now on. Throws
  /// RunFailure with status 2, on every rank, when some rank cannot read the data.
  EvaluationResult run(std::optional<int> steps, const model::Dataset& data, RunWatch& watch);

  [[nodiscard]] const TaskGraph& graph() const { return graph_; }
  [[nodiscard]] const Watched& watched() const { return watched_; }

 private:
  Evaluation(const Session& session, const plan::Schedule& schedule, const model::Network& network,
             const StepData* training, const std::vector<std::vector<float>>& parameters,
             const RuntimeConfig& config, int microbatches, const Shared& shared);

  const Session& session_;
  plan::Schedule schedule_;  // the forward passes
  TaskGraph graph_;
  RankTasks tasks_;
  Meter meter_;
  GpuMemoryMeters& gpu_memory_;
  std::optional<int> window_;
  DataSlots slots_;
  StepData data_;
  Gathering gathering_;
  ExpectedTimes expected_;
  FiniteCheck finite_;  // not used: it finds nothing
  TaskProgress progress_;
  Watched watched_;
  TaskRunner runner_;
  Submitter submitter_;
};

/// A run that evaluates and does not train: an Evaluation with weights of its own, and the parts that Engine
/// owns in a training run. `parameters`: by set, on every rank. Collective.
class Evaluator {
 public:
  Evaluator(const Session& session, const plan::Schedule& schedule, const model::Network& network,
            const std::vector<std::vector<float>>& parameters, const RuntimeConfig& config, int microbatches);
  /// Collective. Waits for all tasks of this rank, then for the other ranks.
  ~Evaluator();
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;

  EvaluationResult run(const model::Dataset& data) { return evaluation_.run(std::nullopt, data, watch_); }

 private:
  const Session& session_;
  GpuMemoryMeters gpu_memory_;
  WorkerOrders next_order_;
  Evaluation evaluation_;
  RunWatch watch_;
};

}  // namespace starpipe::runtime
