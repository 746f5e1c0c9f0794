// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/engine/task_graph.hpp"

namespace starpipe::runtime {

/// Gives each datum of a step a slot: a place that data use one after the other, so that StarPU needs one
/// handle for a slot instead of one for a datum. A slot only takes data of one kind, stage, size and writer.
/// Data that last over the steps have slots of their own.
///
/// The slots follow from the graph alone, so all ranks give a datum the same one.
class DataSlots {
 public:
  /// Every worker must run its jobs in the graph's order. A datum may take the slot of an earlier one in two
  /// cases. Either the jobs that touch the earlier datum have always ended some jobs before the first one
  /// that touches the new datum: the order of each worker and the data that jobs read imply it. Or at least
  /// `distance` tasks of the graph lie between these jobs. Nothing: every datum has its own slot.
  ///
  /// StarPU lets the first task of a slot's new datum wait for all tasks of the old one. In the first case
  /// this changes nothing. In the second the wait goes forward in the graph's order of tasks, as all waits
  /// do, so it adds no cycle; a worker only waits when it is this far ahead of another one.
  DataSlots(const TaskGraph& graph, std::optional<std::size_t> distance);

  [[nodiscard]] std::size_t of(std::size_t datum) const { return slots_[datum]; }
  [[nodiscard]] std::size_t count() const { return count_; }

 private:
  std::size_t count_ = 0;
  std::vector<std::uint32_t> slots_;  // by datum
};

}  // namespace starpipe::runtime
