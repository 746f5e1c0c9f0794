// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/search/search_problem.hpp"
#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::plan {

/// Returns the smallest memory limit that any schedule of the problem can keep, in the unit of
/// `SearchProblem::stash`: the largest `Instance::min_memory` of a worker, or where stashes need no home its
/// largest stash. Micro-batches that run sequentially do not need more.
double min_memory_limit(const SearchProblem& problem);

/// Returns a makespan that no schedule of the problem can beat, whatever transfers delay each other.
/// docs/search.md has the proof. O(S^2) for S stages; where stashes may be copied, also a linear program for
/// each worker or shared link. Throws InputError as `search` does.
double lower_bound(const SearchProblem& problem);

/// Returns the bound, or the makespan where rounding alone puts the bound above it.
double bound_of_makespan(double bound, double makespan);

/// Returns a makespan that no order of the schedule's jobs can beat, where each job stays on its worker: w
/// counts, n and memory limits do not. The larger of two numbers: the longest path of jobs that wait for each
/// other, with the transfers between them; and for each worker, the time of all of its jobs with the shortest
/// time before the first and after the last of them. Any stage graph and any w, unlike `lower_bound`, which
/// is tighter. With Costs::overlap the order may have any pairs. Transfers without prefetch, and transfers of
/// weights, take no time here. O(jobs log jobs).
double placement_bound(const Schedule& schedule, const Costs& costs);

/// Returns the jobs of a schedule with B and W apart for every backward pass, all stashes with their workers,
/// and no limits. W runs where B does. `placement_bound` of the result holds for every schedule that places
/// the stages on the same workers.
Schedule with_split_passes(const Schedule& schedule);

}  // namespace starpipe::plan
