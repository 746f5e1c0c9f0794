// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>

#include "plan/formats/json_value.hpp"
#include "plan/formats/listing.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"
#include "starpipe/plan/simulate/limited_schedule.hpp"

// Values that several files have: of a schedule, and of its costs. Readers throw InputError as JsonValue
// does.

namespace starpipe::plan {

/// Returns {"F": time, "B": time, "W": time}, in the unit of the durations.
nlohmann::ordered_json durations_json(const Durations& durations);
Durations read_durations(const JsonValue& value);
std::vector<Durations> read_list_of_durations(const JsonValue& value);

Pass read_pass(const JsonValue& value);

/// Returns {"worker", "stashes", "limit"}: the value of "reordered" in schedules and reports.
nlohmann::ordered_json reordering_json(const Reordering& reordering);

/// Reads from an object what it says of a schedule: "stages", "microbatches", "discipline", "stage_graph",
/// "shards", "memory_limits" (by worker, none without an entry) and "late_recomputation". `listing` has its
/// rows, and keeps the values of members that are missing.
void read_schedule(const JsonValue& object, Listing& listing);

/// Returns the name of a schedule. It is printed, so it has no control characters.
std::string read_name(const JsonValue& value);

/// How an object writes costs. Records of steps have every member, and "durations" as a list of any length.
/// Schedules leave out what is not known or has no effect, and "durations" and "sizes" are a value if it is
/// the same for all stages, else an array with one value per stage. Where slices of a sequence differ, it has
/// one per stage and slice.
enum class CostsForm { schedule, record };

/// Adds "durations"; transfers ("comm" and "comm_per_byte" if there is one link for all pairs of workers,
/// else "links"); "prefetch"; "sizes", where any is known; which weights stages share ("shared_weights"),
/// which stages have none of their own ("stages_without_weights"), which add their inputs
/// ("stages_that_add"), and of which later slices read nothing ("stages_without_keys_values").
void add_costs(nlohmann::ordered_json& object, const Costs& costs, const Schedule& schedule, CostsForm form);
/// Reads these members. Times of bytes are refused where no transfer has bytes.
Costs read_costs(const JsonValue& object, const Schedule& schedule, CostsForm form);

}  // namespace starpipe::plan
