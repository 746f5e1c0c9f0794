// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/schedules/finer.hpp"
#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::plan {

/// Returns the ordered schedule of `with_parts` with its detached parts where there is time. It is made by
/// running the jobs with their expected costs: a worker that is free runs a ready detached job, else the next
/// job of its own order, which is the schedule's without detached jobs. If that job is not ready, the worker
/// may run ahead: it takes the first ready job after it in its order, passing over the forward passes of at
/// most `ahead` micro-batches. So a worker holds the stashes of at most `ahead` micro-batches more than in
/// the schedule's own order. This is done for 0, 1, 2, 4, ... and `ahead` micro-batches. The result is the
/// order with the shortest makespan by `simulate`. If several orders have it, the result is the one that runs
/// ahead least. F of a source among the detached parts is held back until its reader is at most `ahead` + 1
/// micro-batches from it in its worker's order: outputs of sources would fill the memory.
///
/// Shards of the vocabulary are such parts. Their passes, and the loss that joins them, come back to the last
/// stage only after other workers had time for them, so a pipeline must have more micro-batches in flight.
/// Vocabulary Parallelism (Yeung et al., MLSys 2025, arXiv 2411.05288, Figure 10) has one or two more in its
/// schedules, one for each exchange of results.
///
/// While an order is made, transfers take the time that links need for one alone; with `costs.prefetch ==
/// false` too. Throws InputError as `simulate` does for durations that do not fit. O(jobs log jobs log
/// ahead). Throws it also for a schedule that copies stashes.
Schedule with_detached_where_free(const Schedule& schedule, std::span<const StagePart> parts,
                                  const Costs& costs, int ahead);

}  // namespace starpipe::plan
