// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/engine/task_graph.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::runtime {

/// The parts of a step, as a rank goes through them.
enum class StepPhase : std::int32_t {
  outside,    ///< between two steps, or before the first
  beginning,  ///< it waits for all ranks to begin the step
  running,    ///< its tasks run
  ending,     ///< its tasks have ended; it waits for the other ranks and their results
};

/// The status that a rank sends to the others. Plain data, sent as bytes. A task is an index into the graph's
/// tasks; -1: none.
struct RankStatus {
  StepPhase phase = StepPhase::outside;
  std::int32_t step = -1;     ///< from 0; the last one when `outside`
  std::int32_t next = -1;     ///< the rank's first task, in the graph's order, that has not ended
  std::int32_t running = -1;  ///< the first of its tasks that runs
  double running_for = 0;     ///< seconds since that task started
  double transfer_for = -1;  ///< seconds since the oldest emulated transfer under way started; negative: none
  /// 1 if this is about the evaluation after step `step` (-1 there: before the first step), else 0.
  std::int32_t evaluates = 0;
  std::uint64_t ended = 0;  ///< number of tasks that have ended since the start of the run
};

/// "step 3", "the evaluation after step 3" or "the evaluation before the first step".
inline std::string part_of_run(const RankStatus& status) {
  if (status.evaluates == 0) return "step " + std::to_string(status.step + 1);
  return status.step < 0 ? "the evaluation before the first step"
                         : "the evaluation after step " + std::to_string(status.step + 1);
}

/// The latest status that a rank has received from another rank, or its own.
struct RankNews {
  RankStatus status;
  double age = 0;  ///< seconds since it arrived
};

/// Limits of the watchdog, in seconds.
struct NewsLimits {
  double silent = 0;     ///< a rank whose last status is older is silent
  double long_task = 0;  ///< a task or an emulated transfer that lasts longer does not count as progress
};

/// Owns the record of which tasks of this rank run and which have ended. The thread that runs the steps calls
/// `enter`, StarPU's workers call `start` and `end`, and any one other thread calls `status`.
class TaskProgress {
 public:
  /// `local`: by logical worker, true if it belongs to this rank. `evaluates`: the graph is an evaluation.
  /// The graph must outlive this.
  TaskProgress(const TaskGraph& graph, const std::vector<bool>& local, bool evaluates = false);

  /// The rank enters a part of step `step`. `beginning` forgets the tasks of the step before.
  void enter(StepPhase phase, int step);
  /// A task of this rank starts.
  void start(const Task& task);
  /// A task of this rank has ended.
  void end(const Task& task);

  [[nodiscard]] RankStatus status() const;

 private:
  [[nodiscard]] bool is_mine(std::size_t task) const { return local_[index(graph_.tasks()[task].worker)]; }

  static constexpr double not_started = 0;
  static constexpr double has_ended = -1;

  const TaskGraph& graph_;
  bool evaluates_;
  std::vector<bool> local_;                  // by logical worker: true if it belongs to this rank
  std::vector<std::atomic<double>> starts_;  // by task: clock_seconds() of its start, or a constant above
  std::atomic<std::uint64_t> started_ = 0;
  std::atomic<std::uint64_t> ended_ = 0;
  mutable std::mutex mutex_;  // of the members below
  StepPhase phase_ = StepPhase::outside;
  int step_ = -1;
  mutable std::size_t first_ = 0;  // all tasks of this rank before this one have ended
};

}  // namespace starpipe::runtime
