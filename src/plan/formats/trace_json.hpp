// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include <nlohmann/json_fwd.hpp>

#include "plan/drawing/timeline_svg.hpp"

namespace starpipe::plan {

/// Runs as a Chrome trace, for ui.perfetto.dev: each run is a process, each worker a thread with a counter of
/// live stashes, each job an event. Arrows lead from each job to those on other workers that wait for it.
/// Each run starts at time 0. `microseconds_per_unit` is the timelines' unit of time in microseconds: 1e6 for
/// seconds.
nlohmann::ordered_json trace_json(std::span<const DrawnRun> runs, double microseconds_per_unit = 1e6);

}  // namespace starpipe::plan
