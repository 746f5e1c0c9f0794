// SPDX-License-Identifier: Apache-2.0
#include "plan/formats/results.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "starpipe/plan/drawing/timeline_svg.hpp"
#include "starpipe/plan/explain/recorded_step.hpp"
#include "plan/formats/reordering_json.hpp"
#include "starpipe/plan/formats/schedule_json.hpp"
#include "plan/formats/trace_json.hpp"
#include "plan/drawing/page.hpp"

namespace starpipe::plan {

nlohmann::ordered_json predicted_json(const PredictedRun& run, const nlohmann::ordered_json& more) {
  nlohmann::ordered_json json = schedule_json(run.schedule, run.costs, run.timeline, run.unit);
  nlohmann::ordered_json ops = std::move(json["ops"]);
  json.erase("ops");
  if (run.discipline) json["discipline"] = to_string(*run.discipline);
  if (run.reordering) json["reordered"] = reordering_json(*run.reordering);
  json.update(more);
  json["ops"] = std::move(ops);
  return json;
}

std::string lost_in_csv(const Schedule& schedule) {
  const bool moves_weights = std::ranges::any_of(
      schedule.order(), [&](JobId id) { return schedule.placement(id).weights != schedule.compute(id); });
  std::vector<std::string_view> lost;
  if (!schedule.graph().is_chain()) lost.emplace_back("which stages read which");
  if (moves_weights) lost.emplace_back("which workers hold the weights");
  if (schedule.recompute()) lost.emplace_back("that B computes F again");
  if (lost.empty()) return "";
  return fmt::format("a CSV file cannot say {}; a JSON file can", fmt::join(lost, " and "));
}

std::string predicted_page(const PredictedRun& run, const nlohmann::ordered_json& more) {
  const RecordedStep step = simulated_step(run.schedule, run.costs);
  const std::array runs = {PageRun{.title = run.schedule.name(),
                                   .unit = run.unit,
                                   .costs = run.costs,
                                   .timelines = {{"predicted", &step}},
                                   .report = &more}};
  return report_page(runs);
}

std::string predicted_svg(const PredictedRun& run) {
  const std::array runs = {
      SvgRun{.title = run.schedule.name(), .schedule = &run.schedule, .timeline = &run.timeline}};
  return timeline_svg(runs, {.unit = run.unit});
}

std::string predicted_trace(const PredictedRun& run) {
  const std::array runs = {
      TracedRun{.name = "predicted", .schedule = &run.schedule, .timeline = &run.timeline}};
  return trace_json(runs).dump() + "\n";
}

}  // namespace starpipe::plan
