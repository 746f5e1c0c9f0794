// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/sched/policy_core.hpp"

namespace starpipe::sched::testing {

/// Tasks for PolicyCore. A task is opaque, so any address will do. Here it is the address of a bit mask: bit
/// w is set if worker w cannot run the task.
class Tasks {
 public:
  explicit Tasks(std::size_t count) : cells_(count) {}
  PolicyCore::Task operator[](std::size_t i) { return &cells_[i]; }
  void forbid(std::size_t i, unsigned workers) { cells_[i] = static_cast<char>(workers); }
  static bool allowed(PolicyCore::Task task, int worker) {
    return ((static_cast<unsigned>(*static_cast<char*>(task)) >> worker) & 1U) == 0;
  }
  std::size_t number(PolicyCore::Task task) const {
    return static_cast<std::size_t>(static_cast<char*>(task) - cells_.data());
  }

 private:
  std::vector<char> cells_;
};

/// For a PolicyCore whose workers can run every free task.
inline bool always(PolicyCore::Task, int) { return true; }

/// The workers of a schedule of two, all on this rank.
inline constexpr std::array two_workers = {0, 1};

inline plan::Schedule one_f_one_b(int workers, int microbatches) {
  return plan::make_schedule("1f1b", {.workers = workers, .microbatches = microbatches});
}

}  // namespace starpipe::sched::testing
