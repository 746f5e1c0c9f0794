// SPDX-License-Identifier: Apache-2.0
#include "plan/formats/compared_run_json.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "plan/explain/compared_run.hpp"
#include "plan/formats/json_value.hpp"
#include "plan/formats/recorded_step_json.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::plan {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int version = 2;

/// Parts are differences of whole nanoseconds, so they add up exactly.
ordered_json parts_of_steps(const std::vector<Difference>& steps) {
  const auto of_steps = [&](auto of) {
    std::vector<std::int64_t> all;
    for (const Difference& step : steps) all.push_back(of(step));
    return all;
  };
  const auto difference = [&](double Difference::*to, double Difference::*from) {
    return of_steps([=](const Difference& step) { return nanoseconds(step.*to) - nanoseconds(step.*from); });
  };
  return {{"predicted", nanoseconds(steps.front().predicted)},
          {"durations", difference(&Difference::own_durations, &Difference::predicted)},
          {"transfers", difference(&Difference::own_transfers, &Difference::own_durations)},
          {"order", difference(&Difference::own_order, &Difference::own_transfers)},
          {"runtime", difference(&Difference::measured, &Difference::own_order)},
          {"measured", of_steps([](const Difference& step) { return nanoseconds(step.measured); })}};
}

std::vector<Difference> read_parts(const JsonValue& per_step) {
  const std::size_t count = per_step.at("measured").array().size();
  if (count == 0) per_step.at("measured").fail("no steps");
  const double predicted = per_step.at("predicted").nanoseconds();
  std::vector<Difference> steps(count);
  for (Difference& step : steps) step.predicted = predicted;
  const auto add = [&](std::string_view key, double Difference::*from, double Difference::*to) {
    const JsonValue parts = array_with(per_step, key, count);
    for (std::size_t i = 0; i < count; ++i) {
      const auto sum = nanoseconds(steps[i].*from) + nanoseconds(parts.at(i).nanoseconds());
      steps[i].*to = static_cast<double>(sum) * 1e-9;
    }
  };
  add("durations", &Difference::predicted, &Difference::own_durations);
  add("transfers", &Difference::own_durations, &Difference::own_transfers);
  add("order", &Difference::own_transfers, &Difference::own_order);
  add("runtime", &Difference::own_order, &Difference::measured);
  const JsonValue measured = per_step.at("measured");
  for (std::size_t i = 0; i < count; ++i) {
    if (measured.at(i).nanoseconds() != steps[i].measured)
      measured.at(i).fail("is not the sum of the predicted makespan and the parts");
  }
  return steps;
}

/// True if two makespans are the same in whole nanoseconds.
bool same(double a, double b) { return nanoseconds(a) == nanoseconds(b); }

/// Throws InputError unless the record is of the median step, with the same parts of the difference.
void require_agreement(const ComparedRun& run, const JsonValue& explain) {
  const JsonValue record = explain.at("record");
  const JsonValue per_step = explain.at("per_step");
  std::vector<double> measured;
  for (const Difference& step : run.differences) measured.push_back(step.measured);
  const auto median = measured.begin() + static_cast<std::ptrdiff_t>(measured.size() / 2);
  std::ranges::nth_element(measured, median);
  const Difference& found = run.median_difference();
  if (!same(found.measured, *median))
    explain.at("steps").at("median").fail("is not the step with the median makespan");
  const Difference recorded = difference(run.measured, run.costs);
  if (!same(found.predicted, recorded.predicted))
    record.at("costs").fail("the schedule has another predicted makespan with these costs");
  if (!same(found.measured, recorded.measured))
    record.fail("the jobs do not end with the measured makespan of the median step");
  const auto require_part = [&](std::string_view key, double Difference::*from, double Difference::*to) {
    if (same(found.*to, recorded.*to)) return;
    per_step.at(key)
        .at(index(run.median_step - run.first_step))
        .fail(fmt::format("the jobs in explain.record give {}",
                          nanoseconds(recorded.*to) - nanoseconds(recorded.*from)));
  };
  require_part("durations", &Difference::predicted, &Difference::own_durations);
  require_part("transfers", &Difference::own_durations, &Difference::own_transfers);
  require_part("order", &Difference::own_transfers, &Difference::own_order);
}

}  // namespace

ordered_json compared_run_json(const ComparedRun& run) {
  return {{"version", version},
          {"steps", {{"first", run.first_step}, {"last", run.last_step()}, {"median", run.median_step}}},
          {"per_step", parts_of_steps(run.differences)},
          {"record",
           recorded_step_json(run.measured, {.costs = run.costs, .work = run.work, .groups = run.groups})}};
}

ComparedRun compared_run_from_json(std::string_view text, const std::string& source_name) {
  const json parsed = parse_json(text, source_name);
  if (!parsed.is_object() || !parsed.contains("explain")) {
    throw InputError(
        fmt::format("{}: no \"explain\": not a report of `starpipe train --report`", source_name));
  }
  const JsonValue explain = JsonValue(parsed, "", source_name).at("explain").object();
  if (const int found = explain.at("version").whole(1); found != version)
    explain.at("version").fail(fmt::format("{}, but this program reads version {}", found, version));
  const auto makespan = parsed.find("makespan");
  const bool simulated = makespan != parsed.end() && makespan->is_object() && makespan->contains("simulated");
  const JsonValue steps = explain.at("steps").object();
  const JsonValue record = explain.at("record").object();
  const JsonValue groups = record.at("schedule").object().at("groups");
  const std::vector<Durations> work = read_all_durations(record.at("work"));
  try {
    RecordedStep measured = read_recorded_step(record, source_name);
    if (work.size() != 1 && work.size() != index(measured.planned.stages()))
      record.at("work").fail(fmt::format("{} entries for {} stages", work.size(), measured.planned.stages()));
    const Costs costs = read_recorded_costs(record, measured.planned.stages());
    auto predicted = simulated_step(measured.planned, costs);
    ComparedRun run{.first_step = steps.at("first").whole(1),
                    .median_step = steps.at("median").whole(1),
                    .differences = read_parts(explain.at("per_step").object()),
                    .costs = costs,
                    .work = work,
                    .groups = groups.raw().is_null() ? std::nullopt : std::optional(groups.whole(1)),
                    .predicted = std::move(predicted),
                    .measured = std::move(measured),
                    .found = simulated ? "simulated" : "measured"};
    if (steps.at("last").whole(1) != run.last_step())
      steps.at("last").fail(fmt::format("is not the last of the {} compared steps", run.differences.size()));
    if (run.median_step < run.first_step || run.median_step > run.last_step())
      steps.at("median").fail("is not one of the compared steps");
    require_agreement(run, explain);
    return run;
  } catch (const InputError& error) {
    // Messages of `measured_step` and `simulated_step` know no file.
    if (std::string_view(error.what()).starts_with(source_name)) throw;
    throw InputError(fmt::format("{}: explain.record: {}", source_name, error.what()));
  }
}

namespace {

PolicyRun read_policy(const JsonValue& policy, const std::string& source_name) {
  std::string name = policy.at("policy").word();
  const JsonValue record = policy.at("record").object();
  try {
    RecordedStep step = read_recorded_step(record, source_name);
    const double makespan = policy.at("makespan").time();
    if (std::abs(makespan - step.timeline.makespan) > 1.5e-9)  // both are rounded to nanoseconds
      record.fail(fmt::format("its jobs end after {} s, not with the makespan of the policy, {} s",
                              step.timeline.makespan, makespan));
    Costs costs = read_recorded_costs(record, step.planned.stages());
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
  return recorded_step_json(step, {.costs = costs});
}

std::vector<std::vector<PolicyRun>> compared_policies_from_json(std::string_view text,
                                                                const std::string& source_name) {
  const nlohmann::json parsed = parse_json(text, source_name);
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
