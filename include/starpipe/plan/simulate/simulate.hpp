// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"
#include "starpipe/plan/simulate/timeline.hpp"

namespace starpipe::plan {

/// Runs the schedule: each worker picks among its ready jobs by the schedule's discipline. The greedy rule is
/// the simulator of Unifying Schemes; its update of t(j*) lacks a comma in print. Deterministic: everything
/// that ends or arrives at one time is handled before any worker picks. A job of zero length ends at the time
/// at which it was picked; its end is handled in a further round of that time. O(jobs log jobs).
///
/// `times`: durations and transfer times of single jobs, where these are known.
///
/// Throws InputError with `check`'s message when the schedule cannot finish, as `check_room_at_homes`, or
/// when a cost or a job's time is negative or a vector has a wrong length.
Timeline simulate(const Schedule& schedule, const Costs& costs = {}, const JobTimes& times = {});

/// Throws InputError if more stashes may wait at once on a host or a disk than it has memory for (HomeLink),
/// if there is such a limit, in bytes, and the sizes of stashes are not known, and for a limit of other
/// workers. See `waiting_at_homes`.
void check_room_at_homes(const Schedule& schedule, const Costs& costs);

/// Returns the makespan alone of `simulate(schedule, costs, times)`, for less memory and time.
double simulated_makespan(const Schedule& schedule, const Costs& costs = {}, const JobTimes& times = {});

/// Returns the same jobs, w and limits under the ordered discipline: each worker's order is the order in
/// which `simulate` starts its jobs. So every run follows one order, whatever its timing. The order cannot be
/// read off the spans: jobs of zero length may start together although one of them waits for another. Cost
/// and errors as of `simulate`.
Schedule ordered_as_simulated(const Schedule& schedule, const Costs& costs = {});

}  // namespace starpipe::plan
