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
#include "plan/formats/schedule_values.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::plan {
namespace {

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

ordered_json schedule_of(const Schedule& schedule, std::optional<int> groups) {
  ordered_json about = {{"name", schedule.name()},
                        {"workers", schedule.workers()},
                        {"stages", schedule.stages()},
                        {"microbatches", schedule.microbatches()},
                        {"discipline", to_string(schedule.discipline())},
                        {"stage_graph", schedule.graph().edges()},
                        {"memory_limits", schedule.memory_limits()},
                        {"groups", groups ? ordered_json(*groups) : ordered_json()}};
  if (!schedule.graph().shards().empty()) about["shards"] = schedule.graph().shards();
  if (schedule.slices() > 1) about["slices"] = schedule.slices();
  if (schedule.recomputes_late()) about["late_recomputation"] = true;
  return about;
}

/// The times of jobs in a record.
struct TimeColumn {
  const char* key;
  double JobRun::*time;
};
constexpr std::array<TimeColumn, 4> time_columns = {{{"submitted", &JobRun::submitted},
                                                     {"ready", &JobRun::ready},
                                                     {"start", &JobRun::start},
                                                     {"end", &JobRun::end}}};

/// Returns the jobs as arrays. "home" is there if stashes are copied. "weights" and "ran_on" are the word
/// "worker" when every job has its weights, or ran, where w computes it.
ordered_json jobs_of(const RecordedStep& step) {
  const Schedule& planned = step.planned;
  std::vector<JobRun> runs;
  for (const JobId id : planned.order()) {
    const Span& span = step.timeline.spans[id];
    runs.push_back(
        {id, step.as_run.compute(id), step.submitted[id], step.timeline.ready[id], span.start, span.end});
  }
  const auto by_job = [&](auto of) { return array_of(runs, of); };
  ordered_json jobs = {
      {"stage", by_job([&](const JobRun& run) { return planned.job(run.job).stage; })},
      {"microbatch", by_job([&](const JobRun& run) { return planned.job(run.job).microbatch; })},
      {"pass", by_job([&](const JobRun& run) { return to_string(planned.job(run.job).pass); })},
      {"worker", by_job([&](const JobRun& run) { return planned.compute(run.job); })}};
  if (planned.has_pairs())
    jobs["with_next"] = by_job([&](const JobRun& run) { return planned.last_of_pair(run.job) != run.job; });
  if (planned.copies()) {
    jobs["home"] = by_job([&](const JobRun& run) {
      const Job job = planned.job(run.job);
      return to_string(planned.home(job.stage, job.microbatch));
    });
  }
  const auto workers = [&](auto of) -> ordered_json {
    const auto same = [&](const JobRun& run) { return of(run) == planned.compute(run.job); };
    if (std::ranges::all_of(runs, same)) return same_workers;
    return by_job(of);
  };
  jobs["weights"] = workers([&](const JobRun& run) { return planned.placement(run.job).weights; });
  jobs["ran_on"] = workers([&](const JobRun& run) { return run.worker; });
  for (const auto& [key, column] : time_columns)
    jobs[key] = by_job([time = column](const JobRun& run) { return nanoseconds(run.*time); });
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

/// Returns the workers of an array, each below `workers`.
std::vector<int> read_workers(const JsonValue& values, int workers) {
  return values.list([&](const JsonValue& value) {
    const int worker = value.whole(0);
    if (worker >= workers) value.fail(fmt::format("{}, but there are {} workers", worker, workers));
    return worker;
  });
}

/// Returns the worker of each job from `key`: an array, or the word that says it is the same as `planned`.
std::vector<int> read_other_workers(const JsonValue& jobs, std::string_view key, int workers,
                                    const std::vector<int>& planned) {
  const JsonValue value = jobs.at(key);
  if (value.raw() == same_workers) return planned;
  if (!value.raw().is_array()) value.expected(fmt::format("an array or \"{}\"", same_workers));
  return read_workers(array_with(jobs, key, planned.size()), workers);
}

/// A worker runs its jobs sequentially.
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

/// Returns the step as the value of "record" (docs/explain.md). `costs`: of the prediction. `work`: of each
/// stage's passes; left out when empty. `groups`: with which the schedule was made.
ordered_json recorded_step_json(const RecordedStep& step, const Costs& costs, std::span<const Durations> work,
                                std::optional<int> groups) {
  ordered_json record = {{"schedule", schedule_of(step.planned, groups)}};
  add_costs(record["costs"], costs, step.planned, CostsForm::record);
  if (!work.empty()) record["work"] = array_of(work, durations_json);
  record["prefetch"] = step.prefetch;
  if (step.timeline.gradients_summed)
    record["gradients_summed"] = nanoseconds(*step.timeline.gradients_summed);
  record["jobs"] = jobs_of(step);
  return record;
}

Costs read_recorded_costs(const JsonValue& record, const Schedule& schedule) {
  return read_costs(record.at("costs").object(), schedule, CostsForm::record);
}

/// Returns the planned schedule. `compute`: the worker of each job.
Schedule read_planned(const JsonValue& record, const std::vector<int>& compute, int workers) {
  const JsonValue about = record.at("schedule").object();
  const JsonValue jobs = record.at("jobs");
  const std::vector<int> weights = read_other_workers(jobs, "weights", workers, compute);
  const JsonValue stages = array_with(jobs, "stage", compute.size());
  const JsonValue microbatches = array_with(jobs, "microbatch", compute.size());
  const JsonValue passes = array_with(jobs, "pass", compute.size());
  Listing listing;
  listing.source_name = record.source_name();
  listing.position_text = [&](std::size_t /*row*/, std::size_t cell) {
    return fmt::format("{}, job {}", jobs.path(), cell);
  };
  listing.name = read_name(about.at("name"));
  listing.copy_text = [&](std::size_t worker, std::size_t cell) {
    return fmt::format("{}, copy {} of worker {}", jobs.path(), cell, worker);
  };
  listing.rows.resize(index(workers));
  listing.copies.resize(index(workers));
  std::vector<Job> order;
  const bool has_pairs = jobs.find("with_next").has_value();
  for (std::size_t i = 0; i < compute.size(); ++i) {
    order.push_back({stages.at(i).whole(0), microbatches.at(i).whole(0), read_pass(passes.at(i))});
    std::vector<ListedJob>& row = listing.rows[index(compute[i])];
    const auto n = static_cast<std::int64_t>(i);
    if (is_copy(order.back().pass)) {
      const JsonValue home = array_with(jobs, "home", compute.size()).at(i);
      listing.copies[index(compute[i])].push_back(
          {order.back(), home.parsed(parse_home, "host, disk or worker:N"), row.size(), n});
    } else {
      const bool with_next = has_pairs && array_with(jobs, "with_next", compute.size()).at(i).truth();
      row.push_back({order.back(), weights[i], i, n, with_next});
    }
  }
  for (const char* const key : {"stages", "microbatches", "discipline", "stage_graph", "memory_limits"})
    static_cast<void>(about.at(key));
  read_schedule(about, listing);
  return with_total_order(schedule_from_listing(listing), order);
}

/// Throws InputError, naming the file and the key at fault, for numbers that no run has.
RecordedStep read_recorded_step(const JsonValue& record) {
  constexpr int max_workers = 1'000'000;  // memory is allocated for each
  const JsonValue jobs = record.at("jobs").object();
  const JsonValue count = record.at("schedule").object().at("workers");
  const int workers = count.whole(1);
  if (workers > max_workers) count.fail(fmt::format("must be at most {}", max_workers));
  const std::vector<int> compute = read_workers(jobs.at("worker"), workers);
  if (compute.empty()) jobs.at("worker").fail("no jobs");
  const std::vector<int> ran_on = read_other_workers(jobs, "ran_on", workers, compute);
  const Schedule planned = read_planned(record, compute, workers);

  std::vector<JobRun> runs;
  for (const JobId id : planned.order()) runs.push_back({.job = id, .worker = ran_on[runs.size()]});
  for (const auto& [key, time] : time_columns) {
    const JsonValue times = array_with(jobs, key, runs.size());
    for (std::size_t i = 0; i < runs.size(); ++i) runs[i].*time = times.at(i).nanoseconds();
  }
  Costs costs = read_recorded_costs(record, planned);  // for the sizes
  costs.prefetch = record.at("prefetch").truth();
  RecordedStep step = measured_step(planned, runs, costs);
  if (const auto summed = record.find("gradients_summed"))
    step.timeline.gradients_summed = summed->nanoseconds();
  require_no_overlap(step, jobs);
  require_ready_in_time(step, runs, jobs);
  return step;
}

/// Returns `read()`. Messages of `measured_step` and `simulated_step` know no file: they get `where`.
template <class Read>
auto with_place(const JsonValue& where, Read read) {
  try {
    return read();
  } catch (const InputError& error) {
    if (std::string_view(error.what()).starts_with(where.source_name())) throw;
    where.fail(error.what());
  }
}

constexpr int version = 2;

/// Parts are differences of whole nanoseconds, so they add up exactly.
std::int64_t part_of(const Difference& step, const DifferencePart& part) {
  return nanoseconds(step.*part.to) - nanoseconds(step.*part.from);
}

ordered_json parts_of_steps(const std::vector<Difference>& steps) {
  ordered_json parts = {{"predicted", nanoseconds(steps.front().predicted)}};
  for (const DifferencePart& part : difference_parts)
    parts[part.name] = array_of(steps, [&](const Difference& step) { return part_of(step, part); });
  parts["measured"] = array_of(steps, [](const Difference& step) { return nanoseconds(step.measured); });
  return parts;
}

std::vector<Difference> read_parts(const JsonValue& per_step) {
  const std::size_t count = per_step.at("measured").array().size();
  if (count == 0) per_step.at("measured").fail("no steps");
  const double predicted = per_step.at("predicted").nanoseconds();
  std::vector<Difference> steps(count);
  for (Difference& step : steps) step.predicted = predicted;
  for (const DifferencePart& part : difference_parts) {
    const JsonValue parts = array_with(per_step, part.name, count);
    for (std::size_t i = 0; i < count; ++i) {
      const auto sum = nanoseconds(steps[i].*part.from) + nanoseconds(parts.at(i).nanoseconds());
      steps[i].*part.to = static_cast<double>(sum) * 1e-9;
    }
  }
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
  for (const DifferencePart& part : difference_parts) {
    if (same(found.*part.to, recorded.*part.to)) continue;
    explain.at("per_step")
        .at(part.name)
        .at(index(run.median_step - run.first_step))
        .fail(fmt::format("the jobs in explain.record give {}", part_of(recorded, part)));
  }
}

}  // namespace

ordered_json compared_run_json(const ComparedRun& run) {
  return {{"version", version},
          {"steps", {{"first", run.first_step}, {"last", run.last_step()}, {"median", run.median_step}}},
          {"per_step", parts_of_steps(run.differences)},
          {"record", recorded_step_json(run.measured, run.costs, run.work, run.groups)}};
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
  return with_place(record, [&] {
    const std::vector<Durations> work = read_list_of_durations(record.at("work"));
    RecordedStep measured = read_recorded_step(record);
    if (work.size() != 1 && work.size() != index(measured.planned.stages()))
      record.at("work").fail(fmt::format("{} entries for {} stages", work.size(), measured.planned.stages()));
    const Costs costs = read_recorded_costs(record, measured.planned);
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
  });
}

namespace {

PolicyRun read_policy(const JsonValue& policy) {
  const JsonValue record = policy.object().at("record").object();
  return with_place(record, [&] {
    std::string name = policy.at("policy").word();
    RecordedStep step = read_recorded_step(record);
    const double makespan = policy.at("makespan").time();
    if (std::abs(makespan - step.timeline.makespan) > 1.5e-9)  // both are rounded to nanoseconds
      record.fail(fmt::format("its jobs end after {} s, not with the makespan of the policy, {} s",
                              step.timeline.makespan, makespan));
    return PolicyRun{std::move(name), read_recorded_costs(record, step.planned), std::move(step)};
  });
}

std::vector<PolicyRun> read_policies(const JsonValue& schedule) {
  std::vector<PolicyRun> runs = schedule.object().at("policies").list(read_policy);
  if (runs.empty()) schedule.at("policies").fail("no policies");
  return runs;
}

}  // namespace

nlohmann::ordered_json policy_record_json(const RecordedStep& step, const Costs& costs) {
  return recorded_step_json(step, costs, {}, std::nullopt);
}

std::vector<std::vector<PolicyRun>> compared_policies_from_json(std::string_view text,
                                                                const std::string& source_name) {
  const nlohmann::json parsed = parse_json(text, source_name);
  const JsonValue file(parsed, "", source_name);
  const auto schedules = file.object().find("schedules");
  if (!schedules) return {read_policies(file)};
  std::vector<std::vector<PolicyRun>> all = schedules->list(read_policies);
  if (all.empty()) schedules->fail("no schedules");
  return all;
}

}  // namespace starpipe::plan
