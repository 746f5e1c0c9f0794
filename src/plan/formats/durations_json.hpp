// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::plan {

/// {"F": time, "B": time, "W": time}, in the unit of the durations. Callers include <nlohmann/json.hpp>.
nlohmann::ordered_json durations_json(const Durations& durations);

}  // namespace starpipe::plan
