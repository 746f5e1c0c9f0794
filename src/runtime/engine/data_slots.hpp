// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/engine/task_graph.hpp"

namespace starpipe::runtime {

/// Gives each datum of a step a slot, which several data use in turn: StarPU needs one handle per slot, not
/// one per datum. A slot takes data of one kind, stage, size and writer. Data that last over the steps have
/// slots of their own.
///
/// The slots follow from the graph alone, so all ranks give a datum the same one.
class DataSlots {
 public:
  /// `window`: of `submission_window`; nullopt: every datum has its own slot, because only the order of an
  /// ordered schedule, which has a window, proves that sharing is safe. A datum may take the slot of an
  /// earlier one in two cases. Either the jobs that touch the earlier datum have always ended some jobs
  /// before the first job that touches the new one: worker orders and data dependencies imply it. Or at least
  /// `window` tasks of the graph lie between these jobs: beyond the window no task is inserted.
  ///
  /// StarPU lets the first task of a slot's new datum wait for all tasks of the old one. In the first case
  /// these have ended. In the second case the wait goes forward in the graph's order of tasks, as all waits
  /// do, so it adds no cycle; a worker only waits if it is this far ahead of another worker.
  DataSlots(const TaskGraph& graph, std::optional<int> window);

  [[nodiscard]] std::size_t of(std::size_t datum) const { return slots_[datum]; }
  [[nodiscard]] std::size_t count() const { return count_; }

 private:
  std::size_t count_ = 0;
  std::vector<std::uint32_t> slots_;  // by datum
};

}  // namespace starpipe::runtime
