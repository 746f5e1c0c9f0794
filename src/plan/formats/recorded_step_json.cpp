// SPDX-License-Identifier: Apache-2.0
#include "plan/formats/recorded_step_json.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <utility>

#include <fmt/format.h>

#include "plan/formats/listing.hpp"
#include "plan/formats/schedule_values.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::plan {
namespace {

using nlohmann::ordered_json;

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

}  // namespace

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

JsonValue array_with(const JsonValue& object, std::string_view key, std::size_t size) {
  JsonValue value = object.at(key).array();
  if (value.size() != size) value.fail(fmt::format("{} entries, expected {}", value.size(), size));
  return value;
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

}  // namespace starpipe::plan
