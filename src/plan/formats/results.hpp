// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"
#include "starpipe/plan/simulate/limited_schedule.hpp"
#include "starpipe/plan/simulate/timeline.hpp"

namespace starpipe::plan {

/// A predicted run. Refers to its parts, which must outlive it.
struct PredictedRun {
  const Schedule& schedule;
  const Costs& costs;
  const Timeline& timeline;
  std::string unit = {};                      ///< of all times: "s", or empty when it has no name
  std::optional<Reordering> reordering = {};  ///< nothing when the schedule's own order is kept
  /// The discipline before `simulate` fixed the order; nothing: the schedule's.
  std::optional<Discipline> discipline = {};
};

/// The run as JSON: `schedule_json` with "reordered" and the members of the object `more`. Its "ops" are
/// last, since they are long. Callers include <nlohmann/json.hpp>.
nlohmann::ordered_json predicted_json(const PredictedRun& run, const nlohmann::ordered_json& more);
/// What a CSV file cannot say of the schedule, as a line without a newline. Empty when it says all.
std::string lost_in_csv(const Schedule& schedule);
/// The page of the predicted run. `more`: the report beside the timelines, see PageRun::report.
std::string predicted_page(const PredictedRun& run, const nlohmann::ordered_json& more);
/// The predicted run as an SVG image.
std::string predicted_svg(const PredictedRun& run);
/// The predicted run as a Chrome trace. A unit of time without a name is shown as a second.
std::string predicted_trace(const PredictedRun& run);

}  // namespace starpipe::plan
