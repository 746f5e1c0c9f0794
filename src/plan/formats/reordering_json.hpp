// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "starpipe/plan/simulate/limited_schedule.hpp"

namespace starpipe::plan {

/// {"worker", "stashes", "limit"}: the value of "reordered" in schedules and reports.
nlohmann::ordered_json reordering_json(const Reordering& reordering);

}  // namespace starpipe::plan
