// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/timeline.hpp"

namespace starpipe::plan {

/// A run to trace. Refers to the schedule and timeline, which must outlive the call.
struct TracedRun {
  std::string name;  ///< "predicted", "measured", ...
  const Schedule* schedule = nullptr;
  const Timeline* timeline = nullptr;
};

/// Runs as a Chrome trace, for ui.perfetto.dev: each run is a process, each worker a thread with a counter of
/// live activations, each job an event. Arrows lead from each job to those on other workers that wait for it.
/// Each run starts at time 0. `microseconds_per_unit` is the timelines' unit of time in microseconds: 1e6 for
/// seconds.
nlohmann::ordered_json trace_json(std::span<const TracedRun> runs, double microseconds_per_unit = 1e6);

}  // namespace starpipe::plan
