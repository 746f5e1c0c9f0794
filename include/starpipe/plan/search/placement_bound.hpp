// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::plan {

/// A makespan that no order of the schedule's jobs can beat, where each job stays on its worker: w counts, n
/// and memory limits do not. The larger of two numbers: the longest path of jobs that wait for each other,
/// with the transfers between them; and for each worker, the time of all of its jobs with the least time
/// before the first and after the last of them. Any stage graph and any w, unlike `lower_bound`, which is
/// tighter. Transfers without prefetch take no time here, and neither do those of weights. O(jobs log jobs).
double placement_bound(const Schedule& schedule, const Costs& costs);

}  // namespace starpipe::plan
