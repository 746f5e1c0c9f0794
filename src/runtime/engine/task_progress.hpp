// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "runtime/engine/task_graph.hpp"
#include "runtime/engine/rank_status.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::runtime {

/// Owns the record of which tasks of this rank run and which have ended. The thread that runs the steps calls
/// `enter`, StarPU's workers call `start` and `end`, and any one other thread calls `status`.
class TaskProgress {
 public:
  /// `local`: whether a logical worker belongs to this rank. `evaluates`: the graph is an evaluation. The
  /// graph must outlive this.
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
  std::vector<bool> local_;                  // by logical worker: whether it belongs to this rank
  std::vector<std::atomic<double>> starts_;  // by task: clock_seconds() of its start, or a constant above
  std::atomic<std::uint64_t> started_ = 0;
  std::atomic<std::uint64_t> ended_ = 0;
  mutable std::mutex mutex_;  // of the members below
  StepPhase phase_ = StepPhase::outside;
  int step_ = -1;
  mutable std::size_t first_ = 0;  // all tasks of this rank before this one have ended
};

}  // namespace starpipe::runtime
