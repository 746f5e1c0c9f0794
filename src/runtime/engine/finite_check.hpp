// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine/kernels.hpp"
#include "runtime/engine/task_graph.hpp"
#include "runtime/host/mpi.hpp"

namespace starpipe::runtime {

/// The origin of a step's first value that is not finite.
struct NonFiniteOrigin {
  std::optional<plan::JobId> pass = std::nullopt;  ///< the pass that computed it
  /// Without such a pass: the first parameter, in the model's order, whose gradient is not finite.
  std::string parameter = {};
};

/// Owns the findings of infinity and NaN among the results of a step's passes on this rank. Each pass
/// searches its own results at its end. No other task waits for this search. GPU kernels write findings to
/// memory that they share with the host, so the stream does not stop. StarPU's workers call `flags` and
/// `end`; the thread that runs the steps calls the rest, while no task runs.
class FiniteCheck {
 public:
  /// `workers`: number of logical workers. `is_used`: false if the run does not look for such values; the
  /// class then does nothing. The graph must outlive this.
  FiniteCheck(const TaskGraph& graph, int workers, bool on_gpus, bool is_used);

  /// Forgets the last step.
  void begin_step();

  /// Returns the flag of a pass. The pass sets it to 1 if it finds infinity or NaN. The flag of `judge` is 1
  /// if some pass of its worker has found infinity or NaN. Other tasks have none: the result is nullptr. It
  /// is also nullptr if the run does not look for such values.
  [[nodiscard]] float* flag(const Task& task) const;
  /// Notes the task's findings. Call it when the task has ended, before tasks that depend on it start. Tasks
  /// that do not search are ignored.
  void end(const Task& task);

  /// Collective. Returns, on every rank, the first pass of the step, on any rank, with infinity or NaN in its
  /// results; nullopt if there is none. "First" is by the graph's order of tasks, in which a pass comes after
  /// all passes that it depends on. So no other pass caused the value, and under the ordered discipline each
  /// run finds the same pass. W finds nothing: the gradient norm shows a gradient that is not finite.
  [[nodiscard]] std::optional<plan::JobId> first(const Mpi& mpi) const;

 private:
  static constexpr std::size_t none = static_cast<std::size_t>(-1);

  const TaskGraph& graph_;
  bool is_used_;
  std::shared_ptr<float[]> flags_;                    // by task; GPUs write to them
  std::vector<std::atomic<std::size_t>> first_task_;  // by logical worker: its first task with a finding
};

}  // namespace starpipe::runtime
