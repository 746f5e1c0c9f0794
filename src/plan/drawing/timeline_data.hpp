// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "plan/drawing/ticks.hpp"
#include "plan/drawing/page.hpp"

namespace starpipe::plan::detail {

/// A step as the page reads it (viewer/src/data.ts): figures; and as columns the jobs by worker, idle times
/// by worker, the critical path, memory over time by worker, and the traffic between workers.
nlohmann::ordered_json timeline_data(const PageTimeline& timeline, const Costs& costs, const Ticks& ticks);

}  // namespace starpipe::plan::detail
