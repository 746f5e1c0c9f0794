// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"
#include "starpipe/plan/simulate/timeline.hpp"

namespace starpipe::plan {

/// From `time` on, a worker holds this.
struct MemoryStep {
  double time = 0;
  int stashes = 0;
  std::uint64_t bytes = 0;  ///< of stashes, of B's parts for W, of inputs kept to recompute
};

/// Per worker, what it holds over time, ascending; times are those of `spans` (by JobId).
///
/// A stash is live from the start of F to the end of the last of B and W. Where these run on several
/// workers, the worker of F holds it until F, or what of B and W runs there too, has ended; each other one
/// from the start of the first of B and W there to the end of the last: so what a worker holds follows from
/// the order of its own jobs, and what is on its way, or waits unread, is the transfer's. B's part for W
/// likewise, from the start of B. With recomputation it is B that makes the stash; until B ends a worker
/// keeps the stage's inputs, each from the start of the first F or B there that reads it to the end of the
/// last. (The data that sources read are there anyway.) Intervals are half-open: what ends when another
/// starts does not add to it. O(jobs log jobs).
std::vector<std::vector<MemoryStep>> memory_over_time(const Schedule& schedule, const Costs& costs,
                                                      const std::vector<Span>& spans);

}  // namespace starpipe::plan
