// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "starpipe/plan/simulate/limited_schedule.hpp"

// Values that several files of ours contain. Private to plan.

#include <string>
#include <vector>

#include "plan/formats/json_value.hpp"
#include "starpipe/plan/formats/schedule_json.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::plan::detail {

/// Readers throw InputError as those of JsonValue do.

/// The inverse of `durations_json`.
Durations read_durations(const JsonValue& value);

Discipline read_discipline(const JsonValue& value);

/// The name of a schedule. It is printed, so it has no control characters.
std::string read_name(const JsonValue& value);

/// Edges [from, to] of a stage graph. The result throws InputError for a number of stages that they do not
/// fit.
GraphOfStages read_graph(const JsonValue& value);
/// The graphs with the shards that a file names (StageGraph::with_shards).
GraphOfStages with_shards(GraphOfStages graph, const JsonValue& value);

/// A number of stashes for each of `workers` workers.
std::vector<int> read_memory_limits(const JsonValue& value, std::size_t workers);

}  // namespace starpipe::plan::detail

namespace starpipe::plan {

/// {"worker", "stashes", "limit"}: the value of "reordered" in schedules and reports.
nlohmann::ordered_json reordering_json(const Reordering& reordering);

}  // namespace starpipe::plan
