// SPDX-License-Identifier: Apache-2.0
#include "plan/formats/compared_policies_json.hpp"

#include <cmath>
#include <cstddef>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "plan/formats/json_value.hpp"
#include "plan/formats/recorded_step_json.hpp"
#include "starpipe/base/error.hpp"

namespace starpipe::plan {
namespace {

using detail::JsonValue;

PolicyRun read_policy(const JsonValue& policy, const std::string& source_name) {
  std::string name = policy.at("policy").word();
  const JsonValue record = policy.at("record").object();
  try {
    RecordedStep step = detail::read_recorded_step(record, source_name);
    const double makespan = policy.at("makespan").time();
    if (std::abs(makespan - step.timeline.makespan) > 1.5e-9)  // both are rounded to nanoseconds
      record.fail(fmt::format("its jobs end after {} s, not with the makespan of the policy, {} s",
                              step.timeline.makespan, makespan));
    Costs costs = detail::read_recorded_costs(record, step.planned.stages());
    return {std::move(name), std::move(costs), std::move(step)};
  } catch (const InputError& error) {
    // Messages of `measured_step` know no file.
    if (std::string_view(error.what()).starts_with(source_name)) throw;
    throw InputError(fmt::format("{}: {}: {}", source_name, record.path(), error.what()));
  }
}

std::vector<PolicyRun> read_policies(const JsonValue& schedule, const std::string& source_name) {
  const JsonValue policies = schedule.object().at("policies").array();
  if (policies.size() == 0) policies.fail("no policies");
  std::vector<PolicyRun> runs;
  for (std::size_t p = 0; p < policies.size(); ++p)
    runs.push_back(read_policy(policies.at(p).object(), source_name));
  return runs;
}

}  // namespace

nlohmann::ordered_json policy_record_json(const RecordedStep& step, const Costs& costs) {
  return detail::recorded_step_json(step, {.costs = costs});
}

std::vector<std::vector<PolicyRun>> compared_policies_from_json(std::string_view text,
                                                                const std::string& source_name) {
  const nlohmann::json parsed = detail::parse_json(text, source_name);
  const JsonValue file(parsed, "", source_name);
  const auto schedules = file.object().find("schedules");
  if (!schedules) return {read_policies(file, source_name)};
  if (schedules->array().size() == 0) schedules->fail("no schedules");
  std::vector<std::vector<PolicyRun>> all;
  for (std::size_t s = 0; s < schedules->size(); ++s)
    all.push_back(read_policies(schedules->at(s), source_name));
  return all;
}

}  // namespace starpipe::plan
