// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "starpipe/runtime/setup/config.hpp"

namespace starpipe::runtime {

/// `schedule.partition: auto`: sets `schedule.cuts` for the stages that the schedule has, and
/// `schedule.placement` where the schedule lets one choose and none is given, by the times of
/// `schedule.profile`, which it measures where there are none. Notes its choice in `schedule.chosen`.
///
/// The load of each worker counts all of its stages; a stage that several workers compute is balanced as if
/// it had a worker of its own. Of several placements (general, contiguous, loop, V) the one whose run is
/// predicted to be the shortest is taken. Throws InputError for a profile that is not of this model, and as
/// `make_experiment`.
void choose_partition(Config& config);

/// By stage: the kind of its device in `schedule.profile`, where `choose_partition` put it.
std::vector<int> stage_kinds(const Config& config);

/// What was chosen, one line for people, ending in a newline; empty when nothing was.
std::string describe_partition(const Config& config);

}  // namespace starpipe::runtime
