// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "starpipe/plan/formats/imported_schedule.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"
#include "starpipe/plan/simulate/timeline.hpp"

namespace starpipe::plan {

/// A schedule and one run of it as one JSON object, the form of `schedule show --format json`.
///
/// Times are in the unit of the durations, memory in stage activations; arrays are indexed by worker;
/// "ops" holds one array a worker, by start. "durations" is an object when all stages cost the same, an
/// array with one object a stage otherwise. "stage_graph" (edges), "recompute", "memory_limits",
/// "comm_per_byte", "prefetch", "sizes", "peak_activation_bytes" and "received_bytes" appear only where they
/// differ from the default: a chain, false, none, 0, true, all zero. `schedule_from_json` reads it back.
/// Callers that look inside the result include <nlohmann/json.hpp>.
nlohmann::ordered_json schedule_json(const Schedule& schedule, const Costs& costs, const Timeline& timeline);

/// Reads a schedule from JSON, ours or anyone's.
///
/// Only "ops" is required: one array a worker of {"op", "stage", "microbatch"}, with "weights_from" where
/// the weights come from another worker. "stages", "microbatches", "workers" follow from it and are
/// checked where given. A row runs in the order of "start" when all of its ops have one, else as listed.
/// What a file fixes is an order, so the result has the ordered discipline, whatever made the file; n is
/// the position in the row. Keys it does not know are ignored. O(jobs log jobs).
///
/// Throws InputError, naming `source_name` and the key at fault, unless each (stage, micro-batch) has F
/// once and either BW or both B and W once, and naming a job that can never start when the order cannot
/// finish. Whether memory limits hold is left to `check`.
ImportedSchedule schedule_from_json(std::string_view text, const std::string& source_name,
                                    const GraphOfStages& graph = StageGraph::chain);

}  // namespace starpipe::plan
