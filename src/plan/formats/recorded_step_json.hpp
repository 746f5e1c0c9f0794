// SPDX-License-Identifier: Apache-2.0
#pragma once

// The record of a step in reports. Private to plan.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "plan/explain/recorded_step.hpp"
#include "plan/formats/json_value.hpp"
#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::plan {

/// The parts of a record besides the step.
struct RecordContext {
  const Costs& costs;                        ///< of the prediction
  std::span<const Durations> work = {};      ///< of each stage's passes; left out when empty
  std::optional<int> groups = std::nullopt;  ///< with which the schedule was made
};

/// Returns the step as the value of "record" (docs/explain.md). Times are whole nanoseconds. Times of jobs
/// count from the first start, in arrays with one entry per job in the order of n.
nlohmann::ordered_json recorded_step_json(const RecordedStep& step, const RecordContext& context);

/// Returns the step of a record. Throws InputError, naming `source_name` and the key at fault, for numbers
/// that no run has.
RecordedStep read_recorded_step(const JsonValue& record, const std::string& source_name);

/// Returns the costs of a record whose schedule has this number of stages, with the same errors.
Costs read_recorded_costs(const JsonValue& record, int stages);

/// Durations of each stage, or one entry for all.
std::vector<Durations> read_all_durations(const JsonValue& value);

/// Returns the array `key` of an object, which must have `size` entries.
JsonValue array_with(const JsonValue& object, std::string_view key, std::size_t size);

}  // namespace starpipe::plan
