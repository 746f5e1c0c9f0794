// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "starpipe/plan/schedule/homes_to_fit.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::plan {

/// Returns an ordered schedule as `with_homes_to_fit` does, in which copied stashes wait on other workers
/// that have room for them, as BPipe's do. From its O to its L such a stash counts on the worker with the
/// most room for it. `ways.copies`: where the others wait; with Home::none they are made again, and
/// Home::worker means that all must have room. Each worker's peak stays within its limit. Where `costs` has
/// ranks of several workers, only workers of the same rank count. n follows from the times of a run without a
/// limit, since the memory of one worker then depends on the order of two. Throws InputError as
/// `with_homes_to_fit`, and where a stash finds no home.
Schedule with_homes_at_peers(const Schedule& schedule, std::span<const double> limits, const Costs& costs,
                             const FitWays& ways);

}  // namespace starpipe::plan
