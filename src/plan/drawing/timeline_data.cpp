// SPDX-License-Identifier: Apache-2.0
#include "plan/drawing/timeline_data.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "plan/explain/critical_path.hpp"
#include "plan/explain/idle_causes.hpp"
#include "plan/simulate/memory_over_time.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::plan {
namespace {

using nlohmann::ordered_json;

std::int64_t whole(JobId id) { return id; }

ordered_json figures_of(const Timeline& timeline) {
  ordered_json received;
  for (const TransferKind& kind : transfer_kinds) {
    ordered_json& of_kind = received[kind.key];
    for (const Transfers& to : timeline.received) {
      of_kind["count"].push_back((to.*kind.member).count);
      of_kind["bytes"].push_back((to.*kind.member).bytes);
    }
  }
  ordered_json figures = {{"makespan", timeline.makespan},
                          {"bubble_fraction", timeline.bubble_fraction},
                          {"device_span", timeline.device_span},
                          {"device_bubble_fraction", timeline.device_bubble_fraction},
                          {"busy", timeline.busy},
                          {"peak_stashes", timeline.peak_stashes},
                          {"peak_stash_bytes", timeline.peak_stash_bytes},
                          {"received", std::move(received)}};
  if (timeline.gradients_summed) figures["gradients_summed"] = *timeline.gradients_summed;
  return figures;
}

/// Jobs by worker in the order in which they ran: "start" counts from the end of the job before, "ready" back
/// from the start, and "submitted" back from "ready". "weights" and "submitted" are left out where the
/// weights of all jobs are where they ran, and where all jobs were submitted at time 0.
ordered_json jobs_of(const RecordedStep& step, const Ticks& ticks) {
  const Schedule& schedule = step.as_run;
  Column ids;
  Column start;
  Column length;
  Column ready;
  Column submitted;
  Column weights;
  bool all_at_zero = true;
  bool all_at_home = true;
  std::vector<std::size_t> rows;
  for (const std::vector<JobId>& row : step.timeline.order) {
    rows.push_back(row.size());
    ids.restart();
    std::int64_t end_before = 0;
    for (const JobId id : row) {
      const Span span = step.timeline.spans[id];
      const std::int64_t starts = ticks.of(span.start);
      const std::int64_t is_ready = ticks.of(step.timeline.ready[id]);
      const int holder = schedule.placement(id).weights;
      ids.add_difference(whole(id));
      start.add(starts - end_before);
      end_before = ticks.of(span.end);
      length.add(end_before - starts);
      ready.add(starts - is_ready);
      submitted.add(is_ready - ticks.of(step.submitted[id]));
      weights.add(holder - schedule.compute(id));
      all_at_zero = all_at_zero && step.submitted[id] == 0;
      all_at_home = all_at_home && holder == schedule.compute(id);
    }
  }
  ordered_json jobs = {{"rows", rows},
                       {"id", std::move(ids).take()},
                       {"start", std::move(start).take()},
                       {"length", std::move(length).take()},
                       {"ready", std::move(ready).take()}};
  if (!all_at_zero) jobs["submitted"] = std::move(submitted).take();
  if (!all_at_home) jobs["weights"] = std::move(weights).take();
  return jobs;
}

/// Returns the job for which a worker was idle: that it waited for, or which the order held back. Nothing:
/// -1.
std::int64_t job_of(const IdlePart& part) {
  if (part.cause == IdleCause::order) return part.held_back ? whole(*part.held_back) : -1;
  return part.producer ? whole(*part.producer) : -1;
}

/// Idle parts by worker: "start" counts from the end of the part before, "cause" has a digit for each part.
ordered_json idle_of(const RecordedStep& step, const Ticks& ticks) {
  std::vector<std::size_t> rows(index(step.as_run.workers()), 0);
  Column start;
  Column length;
  Column job;
  std::string cause;
  std::int64_t end_before = 0;
  int worker = -1;
  for (const IdlePart& part : idle_parts(step)) {
    if (part.worker != worker) {
      worker = part.worker;
      end_before = 0;
      job.restart();
    }
    ++rows[index(worker)];
    const std::int64_t starts = ticks.of(part.start);
    start.add(starts - end_before);
    end_before = ticks.of(part.end);
    length.add(end_before - starts);
    cause += static_cast<char>('0' + static_cast<int>(part.cause));
    job.add_difference(job_of(part));
  }
  return {{"rows", rows},
          {"start", std::move(start).take()},
          {"length", std::move(length).take()},
          {"cause", std::move(cause)},
          {"job", std::move(job).take()}};
}

/// Returns the critical path from its start on, each part from the end of the one before. "kind" has a digit
/// for each part; "from" is the sender of a transfer, else -1.
ordered_json path_of(const RecordedStep& step, const Ticks& ticks) {
  const std::vector<PathPart> parts = critical_path(step);
  Column length;
  Column job;
  Column from;
  std::string kind;
  for (const PathPart& part : parts) {
    length.add(ticks.of(part.end) - ticks.of(part.start));
    job.add_difference(whole(part.job));
    from.add(part.from);
    kind += static_cast<char>('0' + static_cast<int>(part.kind));
  }
  return {{"start", parts.empty() ? 0 : ticks.of(parts.front().start)},
          {"length", std::move(length).take()},
          {"kind", std::move(kind)},
          {"job", std::move(job).take()},
          {"from", std::move(from).take()}};
}

/// Returns the memory of each worker, as differences to the step before.
ordered_json memory_of(const RecordedStep& step, const Costs& costs, const Ticks& ticks) {
  Column time;
  Column stashes;
  Column bytes;
  std::vector<std::size_t> rows;
  for (const std::vector<MemoryStep>& of_worker : memory_over_time(step.as_run, costs, step.timeline)) {
    rows.push_back(of_worker.size());
    time.restart();
    stashes.restart();
    bytes.restart();
    for (const MemoryStep& at : of_worker) {
      time.add_difference(ticks.of(at.time));
      stashes.add_difference(at.stashes);
      bytes.add_difference(static_cast<std::int64_t>(at.bytes));
    }
  }
  return {{"rows", rows},
          {"time", std::move(time).take()},
          {"stashes", std::move(stashes).take()},
          {"bytes", std::move(bytes).take()}};
}

ordered_json traffic_of(const RecordedStep& step, const Costs& costs) {
  ordered_json all = ordered_json::array();
  for (const Traffic& pair : count_traffic(step.as_run, costs))
    all.push_back({pair.from, pair.to, pair.sent.count, pair.sent.bytes});
  return all;
}

}  // namespace

ordered_json timeline_data(const PageTimeline& timeline, const Costs& costs, const Ticks& ticks) {
  const RecordedStep& step = *timeline.step;
  return {{"title", timeline.title},           {"figures", figures_of(step.timeline)},
          {"jobs", jobs_of(step, ticks)},      {"idle", idle_of(step, ticks)},
          {"path", path_of(step, ticks)},      {"memory", memory_of(step, costs, ticks)},
          {"traffic", traffic_of(step, costs)}};
}

void Column::add(std::int64_t value) {
  constexpr std::string_view characters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const auto magnitude =
      value < 0 ? 0 - static_cast<std::uint64_t>(value) : static_cast<std::uint64_t>(value);
  std::uint64_t rest = magnitude << 1 | (value < 0 ? 1U : 0U);
  do {
    const std::uint64_t digit = rest & 31;
    rest >>= 5;
    text_ += characters[rest > 0 ? digit | 32 : digit];
  } while (rest > 0);
}

void Column::add_difference(std::int64_t value) {
  add(value - last_);
  last_ = value;
}

namespace {

template <class Function>
void for_each_time(std::span<const RecordedStep* const> steps, Function f) {
  for (const RecordedStep* step : steps) {
    for (const JobId id : step->as_run.order()) {
      f(step->timeline.spans[id].start);
      f(step->timeline.spans[id].end);
      f(step->timeline.ready[id]);
      f(step->submitted[id]);
    }
  }
}

}  // namespace

Ticks::Ticks(std::span<const RecordedStep* const> steps) {
  constexpr double max = 1e15;  // below 2^53; differences of two times fit too
  double largest = 0;
  for_each_time(steps, [&](double time) { largest = std::max(largest, std::abs(time)); });
  while (largest > max * length()) ++exponent_;
  int zeros = 15;  // decimal zeros at the end of all times
  for_each_time(steps, [&](double time) {
    std::int64_t value = of(time);
    if (value == 0) return;
    int own = 0;
    for (; own < zeros && value % 10 == 0; ++own) value /= 10;
    zeros = own;
  });
  exponent_ += zeros;
}

std::int64_t Ticks::of(double time) const {
  // Powers of ten up to 10^22 are exact, those below 1 are not.
  return std::llround(exponent_ < 0 ? time * std::pow(10.0, -exponent_) : time / std::pow(10.0, exponent_));
}

double Ticks::length() const { return std::pow(10.0, exponent_); }

}  // namespace starpipe::plan
