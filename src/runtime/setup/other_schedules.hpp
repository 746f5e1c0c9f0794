// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "starpipe/runtime/config/config.hpp"

namespace starpipe::runtime {

/// The configuration of the same work under another named schedule.
struct OtherSchedule {
  Config config;
  /// Factor on the times of `runtime.emulate`, which are those of a stage of the configured schedule: with
  /// twice as many stages a stage is half the work.
  double stage_share = 1;
};

/// A configuration for each of these schedules, with `schedule.name` set to it. Plug-ins that do not have the
/// schedule are dropped. An emulated time that is one for all stages is multiplied by `stage_share`. Every
/// other key is kept. Without `schedule.stages` each schedule has its own number of stages. Throws InputError
/// for `schedule.file`, for an unknown schedule and for one that is named twice, and where emulated times by
/// stage are those of another number of stages.
std::vector<OtherSchedule> with_schedules(const Config& config, const std::vector<std::string>& names);

}  // namespace starpipe::runtime
