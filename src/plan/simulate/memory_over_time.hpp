// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"
#include "starpipe/plan/simulate/timeline.hpp"

namespace starpipe::plan {

/// The memory that a worker holds from `time` to the next step.
struct MemoryStep {
  double time = 0;
  int stashes = 0;
  std::uint64_t bytes = 0;  ///< of stashes, of gradient stashes, and of inputs kept for recomputation
};

/// Returns, for each worker, the memory that it holds for backward passes, as steps in the order of time.
/// Reads the spans and the order of the timeline.
///
/// A stash is live from the start of F to the end of the last of B and W. These passes may run on several
/// workers. The worker of F then holds the stash from the start of F until the last of those passes that it
/// runs itself has ended. Every other worker holds its copy from the start of the first of B and W there to
/// the end of the last. So the memory of a worker follows from the order of its own jobs, and data on their
/// way, or waiting unread, do not count.
///
/// The gradient stash, which B keeps for W, counts in the same way, from the start of B. With recomputation,
/// R makes the stash, from the stage's inputs. A worker then holds each input from the start of its first F
/// or R that reads the input to the end of the last. Inputs of the network are not counted, since they are in
/// memory anyway.
///
/// A stash that is copied counts from the start of F to the end of O, and from the start of L to the end of
/// the last of B and W. Of a worker's jobs and copies at one time, those that end come first, then the others
/// in the order of n.
///
/// The end of a job and the start of the next at the same time make one step. Jobs that take no time hold
/// their stashes too: several steps may then have the same time. O(jobs).
std::vector<std::vector<MemoryStep>> memory_over_time(const Schedule& schedule, const Costs& costs,
                                                      const Timeline& timeline);

}  // namespace starpipe::plan
