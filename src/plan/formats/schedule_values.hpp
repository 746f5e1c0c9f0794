// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "plan/formats/json_value.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/formats/schedule_json.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"
#include "starpipe/plan/simulate/limited_schedule.hpp"

// Values that several files have: of a schedule, and of its costs. Readers throw InputError as JsonValue
// does.

namespace starpipe::plan {

/// Reads the object that `durations_json` writes.
Durations read_durations(const JsonValue& value);

Discipline read_discipline(const JsonValue& value);

/// Returns the name of a schedule. It is printed, so it has no control characters.
std::string read_name(const JsonValue& value);

/// Edges [from, to] of a stage graph. The result throws InputError for a number of stages that they do not
/// fit.
GraphOfStages read_graph(const JsonValue& value);
/// Returns the graphs with the shards that a file names (StageGraph::with_shards).
GraphOfStages with_shards(GraphOfStages graph, const JsonValue& value);

/// Returns a number of stashes for each of `workers` workers.
std::vector<int> read_memory_limits(const JsonValue& value, std::size_t workers);

/// {"worker", "stashes", "limit"}: the value of "reordered" in schedules and reports.
nlohmann::ordered_json reordering_json(const Reordering& reordering);

/// Returns the value of `of(stage)` if it is the same for all stages, else an array with one value per stage.
template <class Of>
nlohmann::ordered_json per_stage(int stages, Of of) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (int s = 0; s < stages; ++s) all.push_back(of(s));
  for (const auto& value : all) {
    if (value != all[0]) return all;
  }
  return all[0];
}
/// Reads one value for all stages, or an array with one value per stage.
template <class T, class Read>
std::vector<T> read_per_stage(const JsonValue& value, int stages, Read read) {
  if (!value.raw().is_array()) return {read(value.object())};
  if (value.size() != index(stages)) {
    value.fail(std::to_string(value.size()) + " entries for " + std::to_string(stages) + " stages");
  }
  std::vector<T> all;
  for (std::size_t s = 0; s < value.size(); ++s) all.push_back(read(value.at(s).object()));
  return all;
}

/// Adds `sizes` to `object` where any is known.
void add_sizes(nlohmann::ordered_json& object, const Costs& costs, int stages);
/// The inverse; the sizes are unknown without the key.
void read_sizes(const JsonValue& object, int stages, Costs& costs);

/// Adds what transfers between workers cost: one link for all pairs of workers as `comm` and `comm_per_byte`,
/// levels as `links`.
void add_links(nlohmann::ordered_json& object, const Costs& costs);
/// The inverse. Sizes are read before: times of bytes are refused where no transfer has bytes.
void read_links(const JsonValue& object, Costs& costs);

/// {"F": time, "B": time, "W": time}, in the unit of the durations. Callers include <nlohmann/json.hpp>.
nlohmann::ordered_json durations_json(const Durations& durations);

/// Adds to an object which weights stages share (`shared_weights`), which stages have none of their own
/// (`stages_without_weights`), and which add their inputs (`stages_that_add`). Adds nothing where each
/// stage has weights of its own alone, and one input or several side by side.
void add_weights(nlohmann::ordered_json& object, const Costs& costs, int stages);

/// Reads it. Throws InputError as JsonValue does.
void read_weights(const JsonValue& object, int stages, Costs& costs);

}  // namespace starpipe::plan
