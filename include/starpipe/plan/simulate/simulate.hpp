// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"
#include "starpipe/plan/simulate/timeline.hpp"

namespace starpipe::plan {

/// Runs the schedule: each worker picks among its ready jobs by the schedule's discipline (the greedy
/// rule is source 000's simulator, with the comma it means in the update of t(j*)). Deterministic: all
/// that ends or arrives at one time is seen before any worker picks; what jobs of zero length then end at
/// the same time is a further round. O(jobs log jobs).
///
/// Throws InputError with `check`'s message when the schedule cannot finish, or when a cost is negative or
/// a per-stage vector has a wrong length.
Timeline simulate(const Schedule& schedule, const Costs& costs = {});

/// The same jobs, w and limits under the ordered discipline, each worker's order that in which `simulate`
/// starts its jobs: decided once, it is what every run does, whatever its timing. Spans would not do: jobs of
/// no length may start together, and one of them may have ended before the other could. Cost and errors as
/// of `simulate`.
Schedule ordered_as_simulated(const Schedule& schedule, const Costs& costs = {});

}  // namespace starpipe::plan
