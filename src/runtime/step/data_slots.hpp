// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/step/task_graph.hpp"

namespace starpipe::runtime {

/// Gives each datum of a step a slot: a place that data use one after the other, so that StarPU needs one
/// handle for a slot instead of one for a datum. A slot only takes data of one kind, stage, size and writer.
/// Data that last over the steps have slots of their own.
///
/// The slots follow from the graph alone, so all ranks give a datum the same one.
class DataSlots {
 public:
  /// A datum may take the slot of an earlier one when at least `distance` tasks of the graph lie between the
  /// last task that touches the earlier datum and the first one that touches the new datum. Nothing: every
  /// datum has its own slot.
  ///
  /// StarPU lets the first task of a slot's new datum wait for all tasks of the old one. These waits go
  /// forward in the graph's order of tasks, as all others do. So they add no cycle where every worker runs
  /// its tasks in this order. A large distance also keeps them from delaying a task: a worker then only waits
  /// when it is this far ahead of another one.
  DataSlots(const TaskGraph& graph, std::optional<std::size_t> distance);

  [[nodiscard]] std::size_t of(std::size_t datum) const { return slots_[datum]; }
  [[nodiscard]] std::size_t count() const { return count_; }

 private:
  std::size_t count_ = 0;
  std::vector<std::uint32_t> slots_;  // by datum
};

}  // namespace starpipe::runtime
