// SPDX-License-Identifier: Apache-2.0
#include "plan/formats/compared_run_json.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "plan/formats/json_value.hpp"
#include "plan/formats/listing.hpp"
#include "plan/formats/schedule_values.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::plan {
namespace {

/// The parts of a record besides the step.
struct RecordContext {
  const Costs& costs;                        ///< of the prediction
  std::span<const Durations> work = {};      ///< of each stage's passes; left out when empty
  std::optional<int> groups = std::nullopt;  ///< with which the schedule was made
};

using nlohmann::json;
using nlohmann::ordered_json;

/// Returns the array `key` of an object, which must have `size` entries.
JsonValue array_with(const JsonValue& object, std::string_view key, std::size_t size) {
  JsonValue value = object.at(key).array();
  if (value.size() != size) value.fail(fmt::format("{} entries, expected {}", value.size(), size));
  return value;
}

// In place of an array of workers that is the same as "worker".
constexpr const char* same_workers = "worker";

ordered_json all_durations(std::span<const Durations> durations) {
  return array_of(durations, [](const Durations& of_stage) { return durations_json(of_stage); });
}

ordered_json schedule_of(const Schedule& schedule, std::optional<int> groups) {
  ordered_json about = {{"name", schedule.name()},
                        {"workers", schedule.workers()},
                        {"stages", schedule.stages()},
                        {"microbatches", schedule.microbatches()},
                        {"discipline", to_string(schedule.discipline())},
                        {"stage_graph", schedule.graph().edges()},
                        {"memory_limits", schedule.memory_limits()},
                        {"recompute", schedule.recompute()},
                        {"groups", groups ? ordered_json(*groups) : ordered_json()}};
  if (!schedule.graph().shards().empty()) about["shards"] = schedule.graph().shards();
  return about;
}

/// "weights" and "ran_on" are the word "worker" when every job has its weights, or ran, where w computes it.
ordered_json jobs_of(const RecordedStep& step) {
  const Schedule& planned = step.planned;
  const auto by_job = [&](auto of) { return array_of(planned.order(), of); };
  const auto time = [&](auto of) { return by_job([=](JobId id) { return nanoseconds(of(id)); }); };
  ordered_json jobs = {{"stage", by_job([&](JobId id) { return planned.job(id).stage; })},
                       {"microbatch", by_job([&](JobId id) { return planned.job(id).microbatch; })},
                       {"pass", by_job([&](JobId id) { return to_string(planned.job(id).pass); })},
                       {"worker", by_job([&](JobId id) { return planned.compute(id); })}};
  const auto workers = [&](auto of) -> ordered_json {
    const auto same = [&](JobId id) { return of(id) == planned.compute(id); };
    if (std::ranges::all_of(planned.order(), same)) return same_workers;
    return by_job(of);
  };
  jobs["weights"] = workers([&](JobId id) { return planned.placement(id).weights; });
  jobs["ran_on"] = workers([&](JobId id) { return step.as_run.compute(id); });
  const Timeline& timeline = step.timeline;
  jobs["submitted"] = time([&](JobId id) { return step.submitted[id]; });
  jobs["ready"] = time([&](JobId id) { return timeline.ready[id]; });
  jobs["start"] = time([&](JobId id) { return timeline.spans[id].start; });
  jobs["end"] = time([&](JobId id) { return timeline.spans[id].end; });
  return jobs;
}

/// Returns the schedule with n as in the file, since rows alone say the order of each worker only.
Schedule with_total_order(const Schedule& rows, const std::vector<Job>& order) {
  std::vector<std::int64_t> position(rows.id_count(), 0);
  for (std::size_t i = 0; i < order.size(); ++i)
    position[*rows.find(order[i])] = static_cast<std::int64_t>(i);
  const auto limits = rows.memory_limits();
  return rows.ordered_by(position).with(rows.discipline(), {limits.begin(), limits.end()});
}

std::vector<Job> read_jobs(const JsonValue& jobs, std::size_t count) {
  const JsonValue stages = array_with(jobs, "stage", count);
  const JsonValue microbatches = array_with(jobs, "microbatch", count);
  const JsonValue passes = array_with(jobs, "pass", count);
  std::vector<Job> all;
  for (std::size_t i = 0; i < count; ++i) {
    const JsonValue word = passes.at(i);
    Job& job = all.emplace_back(Job{stages.at(i).whole(0), microbatches.at(i).whole(0), Pass::F});
    try {
      job.pass = parse_pass(word.word());
    } catch (const InputError&) {
      word.expected("F, B, W or BW");
    }
  }
  return all;
}

/// Returns the numbers of an array, each below `workers`.
std::vector<int> read_workers(const JsonValue& values, int workers) {
  std::vector<int> all;
  for (std::size_t i = 0; i < values.size(); ++i) {
    all.push_back(values.at(i).whole(0));
    if (all.back() >= workers)
      values.at(i).fail(fmt::format("{}, but there are {} workers", all.back(), workers));
  }
  return all;
}

/// Returns the worker of each job from `key`: an array, or the word that says it is the same as `planned`.
std::vector<int> read_other_workers(const JsonValue& jobs, std::string_view key, int workers,
                                    const std::vector<int>& planned) {
  const JsonValue value = jobs.at(key);
  if (value.raw() == same_workers) return planned;
  if (!value.raw().is_array()) value.expected(fmt::format("an array or \"{}\"", same_workers));
  return read_workers(array_with(jobs, key, planned.size()), workers);
}

/// A worker runs one job after the other.
void require_no_overlap(const RecordedStep& step, const JsonValue& jobs) {
  for (int worker = 0; worker < step.as_run.workers(); ++worker) {
    const auto row = step.as_run.order(worker);
    for (std::size_t i = 1; i < row.size(); ++i) {
      if (step.timeline.spans[row[i]].start >= step.timeline.spans[row[i - 1]].end) continue;
      jobs.fail(fmt::format("{} starts before {} has ended, but both ran on worker {}",
                            to_string(step.as_run.job(row[i])), to_string(step.as_run.job(row[i - 1])),
                            worker));
    }
  }
}

/// A job is ready after its task was inserted and the jobs that it waits for on its own worker have ended,
/// and before it starts. Jobs on other workers are not looked at: the clocks of hosts differ. `runs`: the
/// jobs in the order of the file.
void require_ready_in_time(const RecordedStep& step, std::span<const JobRun> runs, const JsonValue& jobs) {
  const auto name = [&](JobId id) { return to_string(step.as_run.job(id)); };
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const JobRun& run = runs[i];
    if (run.ready > run.start)
      jobs.at("ready").at(i).fail(fmt::format("{} starts before it is ready", name(run.job)));
    if (run.submitted > run.ready)
      jobs.at("submitted").at(i).fail(fmt::format("{} is ready before it is submitted", name(run.job)));
    step.as_run.for_each_pred(run.job, [&](JobId before) {
      if (step.as_run.compute(before) != run.worker) return;
      if (step.timeline.ready[run.job] >= step.timeline.spans[before].end) return;
      jobs.at("ready").at(i).fail(
          fmt::format("{} is ready before {} has ended on the same worker", name(run.job), name(before)));
    });
  }
}

/// Returns the step as the value of "record" (docs/explain.md).
ordered_json recorded_step_json(const RecordedStep& step, const RecordContext& context) {
  const int stages = step.planned.stages();
  ordered_json costs = {{"durations", all_durations(context.costs.durations)}};
  add_links(costs, context.costs);
  costs["prefetch"] = context.costs.prefetch;
  add_sizes(costs, context.costs, stages);
  add_weights(costs, context.costs, stages);
  ordered_json record = {{"schedule", schedule_of(step.planned, context.groups)},
                         {"costs", std::move(costs)}};
  if (!context.work.empty()) record["work"] = all_durations(context.work);
  record["prefetch"] = step.prefetch;
  if (step.timeline.gradients_summed)
    record["gradients_summed"] = nanoseconds(*step.timeline.gradients_summed);
  record["jobs"] = jobs_of(step);
  return record;
}

std::vector<Durations> read_all_durations(const JsonValue& value) {
  std::vector<Durations> all;
  for (std::size_t s = 0; s < value.array().size(); ++s) all.push_back(read_durations(value.at(s).object()));
  return all;
}

Costs read_recorded_costs(const JsonValue& record, int stages) {
  const JsonValue value = record.at("costs").object();
  Costs costs;
  costs.durations = read_all_durations(value.at("durations"));
  read_sizes(value, stages, costs);
  if (!value.find("links")) static_cast<void>(value.at("comm"));
  read_links(value, costs);
  costs.prefetch = value.at("prefetch").truth();
  read_weights(value, stages, costs);
  return costs;
}

/// Throws InputError, naming `source_name` and the key at fault, for numbers that no run has.
RecordedStep read_recorded_step(const JsonValue& record, const std::string& source_name) {
  constexpr int max_workers = 1'000'000;  // memory is allocated for each
  const JsonValue about = record.at("schedule").object();
  const JsonValue jobs = record.at("jobs").object();
  const int workers = about.at("workers").whole(1);
  if (workers > max_workers) about.at("workers").fail(fmt::format("must be at most {}", max_workers));
  const std::vector<int> compute = read_workers(jobs.at("worker").array(), workers);
  if (compute.empty()) jobs.at("worker").fail("no jobs");
  const std::vector<int> weights = read_other_workers(jobs, "weights", workers, compute);
  const std::vector<int> ran_on = read_other_workers(jobs, "ran_on", workers, compute);
  const std::vector<Job> order = read_jobs(jobs, compute.size());

  Listing listing;
  listing.source_name = source_name;
  listing.position_text = [&](std::size_t /*row*/, std::size_t cell) {
    return fmt::format("{}, job {}", jobs.path(), cell);
  };
  listing.name = read_name(about.at("name"));
  listing.stages = about.at("stages").whole(1);
  listing.microbatches = about.at("microbatches").whole(1);
  listing.discipline = read_discipline(about.at("discipline"));
  listing.graph = read_graph(about.at("stage_graph"));
  if (const auto shards = about.find("shards")) listing.graph = with_shards(listing.graph, *shards);
  if (const JsonValue limits = about.at("memory_limits"); limits.array().size() > 0)
    listing.memory_limits = read_memory_limits(limits, index(workers));
  listing.recompute = about.at("recompute").truth();
  listing.rows.resize(index(workers));
  for (std::size_t i = 0; i < order.size(); ++i)
    listing.rows[index(compute[i])].push_back({order[i], weights[i], i});
  const Schedule planned = with_total_order(schedule_from_listing(listing), order);

  const auto times = [&](std::string_view key) { return array_with(jobs, key, order.size()); };
  const std::array columns = {times("submitted"), times("ready"), times("start"), times("end")};
  std::vector<JobRun> runs;
  for (std::size_t i = 0; i < order.size(); ++i) {
    runs.push_back({.job = *planned.find(order[i]),
                    .worker = ran_on[i],
                    .submitted = columns[0].at(i).nanoseconds(),
                    .ready = columns[1].at(i).nanoseconds(),
                    .start = columns[2].at(i).nanoseconds(),
                    .end = columns[3].at(i).nanoseconds()});
  }
  Costs costs = read_recorded_costs(record, planned.stages());  // for the sizes
  costs.prefetch = record.at("prefetch").truth();
  RecordedStep step = measured_step(planned, runs, costs);
  if (const auto summed = record.find("gradients_summed"))
    step.timeline.gradients_summed = summed->nanoseconds();
  require_no_overlap(step, jobs);
  require_ready_in_time(step, runs, jobs);
  return step;
}

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
