// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "runtime/setup/experiment.hpp"
#include "runtime/engine/memory_need.hpp"

namespace starpipe::runtime {

/// What each worker of the experiment needs in a run with these times.
std::vector<DeviceNeed> memory_need_of(const Config& config, const Experiment& experiment,
                                       const plan::Costs& costs, const plan::Timeline& timeline);

/// The bytes that each worker needs at its peak: an array of objects with the parts by name. Callers include
/// <nlohmann/json.hpp>.
nlohmann::ordered_json memory_json(const std::vector<DeviceNeed>& needs);

/// The bytes over the step: an array of objects with the worker's `limit`, if there is one, and as "time" and
/// "bytes" the levels of the worker. Times are in the unit of the timeline.
nlohmann::ordered_json memory_over_time_json(const std::vector<DeviceNeed>& needs,
                                             const RuntimeConfig& config);

}  // namespace starpipe::runtime
