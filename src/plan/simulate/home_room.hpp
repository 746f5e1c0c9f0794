// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::plan {

/// Throws InputError if more stashes may wait at once on a host or a disk than it has memory for (HomeLink),
/// or if there is such a limit, in bytes, and the sizes of stashes are not known.
void check_room_at_homes(const Schedule& schedule, const Costs& costs);

}  // namespace starpipe::plan
