// SPDX-License-Identifier: Apache-2.0
// Weights and gradients stay registered over the steps, so StarPU keeps what a GPU fetched of them until the
// owner writes again. Here is decided when a copy is no longer needed. Knows no StarPU.
#pragma once

#include <map>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "runtime/step/task_graph.hpp"

namespace starpipe::runtime {

/// The copies of lasting data on memory nodes of this rank that are neither their owner's nor main memory,
/// where the owner is a worker of this rank. (Copies of what another rank owns, and of temporaries, are
/// invalidated after their last reader on the rank.) Thread-safe.
class FetchedCopies {
 public:
  static constexpr int main_memory = 0;

  /// `nodes`: StarPU's memory node of each logical worker, -1 for those of other ranks. The graph must
  /// outlive it.
  FetchedCopies(const TaskGraph& graph, std::span<const int> nodes);

  /// Before each step.
  void reset();

  /// `task` has ended on its worker. The data whose copy on that worker's node no further task of the step
  /// reads.
  [[nodiscard]] std::vector<std::size_t> unread_after(const Task& task);

 private:
  using Place = std::pair<std::size_t, int>;  // datum, node

  [[nodiscard]] int node(int worker) const { return nodes_[static_cast<std::size_t>(worker)]; }
  [[nodiscard]] bool is_fetched(const DataAccess& access, int worker) const;

  const TaskGraph& graph_;
  std::vector<int> nodes_;
  std::map<Place, int> readers_;  // of a step
  std::mutex mutex_;
  std::map<Place, int> left_;
};

}  // namespace starpipe::runtime
