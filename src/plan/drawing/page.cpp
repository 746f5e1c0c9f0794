// SPDX-License-Identifier: Apache-2.0
#include "plan/drawing/page.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/messages.hpp"
#include "plan/explain/critical_path.hpp"
#include "plan/explain/idle_causes.hpp"
#include "plan/simulate/memory_over_time.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/version.hpp"

namespace starpipe::plan {
namespace {

using nlohmann::ordered_json;

std::int64_t whole(JobId id) { return id; }

ordered_json figures_of(const RecordedStep& step) {
  const Timeline& timeline = step.timeline;
  ordered_json received;
  for (const TransferKind& kind : transfer_kinds) {
    if (!may_occur(kind, step.as_run)) continue;
    ordered_json& of_kind = received[kind.key];
    for (const Transfers& to : timeline.received) {
      of_kind["count"].push_back((to.*kind.member).count);
      of_kind["bytes"].push_back((to.*kind.member).bytes);
    }
  }
  ordered_json figures = {{"makespan", timeline.makespan},
                          {"bubble_fraction", timeline.bubble_fraction},
                          {"recomputed_fraction", timeline.recomputed_fraction},
                          {"device_span", timeline.device_span},
                          {"device_bubble_fraction", timeline.device_bubble_fraction},
                          {"busy", timeline.busy},
                          {"peak_stashes", timeline.peak_stashes},
                          {"peak_stash_bytes", timeline.peak_stash_bytes},
                          {"received", std::move(received)}};
  if (timeline.gradients_summed) figures["gradients_summed"] = *timeline.gradients_summed;
  return figures;
}

/// Returns the jobs of each worker in the order in which they ran. Where stashes are copied, two rows for
/// each worker follow: its O and its L, in the order in which they started.
std::vector<std::vector<JobId>> rows_of(const RecordedStep& step) {
  const Schedule& schedule = step.as_run;
  std::vector<std::vector<JobId>> rows = step.timeline.order;
  for (int w = 0; w < schedule.workers() && schedule.copies(); ++w) {
    for (const Pass pass : {Pass::O, Pass::L}) {
      std::vector<JobId>& row = rows.emplace_back();
      std::ranges::copy_if(schedule.copies_of(w), std::back_inserter(row), [&](JobId id) {
        return schedule.job(id).pass == pass && schedule.compute(id) == w;
      });
      std::ranges::stable_sort(row, {}, [&](JobId id) { return step.timeline.spans[id].start; });
    }
  }
  return rows;
}

/// Returns the jobs by row, see `rows_of`: "start" counts from the end of the job before, "ready" back from
/// the start, and "submitted" back from "ready". "weights" and "submitted" are left out where the weights of
/// all jobs are where they ran, and where all jobs were submitted at time 0.
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
  for (const std::vector<JobId>& row : rows_of(step)) {
    rows.push_back(row.size());
    ids.restart();
    std::int64_t end_before = 0;
    for (const JobId id : row) {
      const Span span = step.timeline.spans[id];
      const std::int64_t starts = ticks.of(span.start);
      const std::int64_t is_ready = ticks.of(step.timeline.ready[id]);
      // A copy reads no weights.
      const bool is_stash = schedule.copies() && is_copy(schedule.job(id).pass);
      const int holder = is_stash ? schedule.compute(id) : schedule.placement(id).weights;
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
                       {"id", ids.text()},
                       {"start", start.text()},
                       {"length", length.text()},
                       {"ready", ready.text()}};
  if (!all_at_zero) jobs["submitted"] = submitted.text();
  if (!all_at_home) jobs["weights"] = weights.text();
  return jobs;
}

/// Returns the job for which a worker was idle: that it waited for, or which the order held back. Nothing:
/// -1.
std::int64_t job_of(const IdlePart& part) {
  if (part.cause == IdleCause::order) return part.held_back ? whole(*part.held_back) : -1;
  return part.producer ? whole(*part.producer) : -1;
}

/// Returns the idle parts by worker: "start" counts from the end of the part before, "cause" has a digit for
/// each part.
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
          {"start", start.text()},
          {"length", length.text()},
          {"cause", std::move(cause)},
          {"job", job.text()}};
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
          {"length", length.text()},
          {"kind", std::move(kind)},
          {"job", job.text()},
          {"from", from.text()}};
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
  return {{"rows", rows}, {"time", time.text()}, {"stashes", stashes.text()}, {"bytes", bytes.text()}};
}

ordered_json traffic_of(const RecordedStep& step, const Costs& costs) {
  ordered_json all = ordered_json::array();
  for (const Traffic& pair : count_traffic(step.as_run, costs))
    all.push_back({pair.from, pair.to, pair.sent.count, pair.sent.bytes});
  return all;
}

constexpr int data_version = 2;  // viewer/src/data.ts has the same

/// Returns a digit for the home of each stash, by micro-batch and stage; of one micro-batch if all are alike.
std::vector<int> homes_of(const Schedule& schedule) {
  std::vector<int> homes;
  for (int b = 0; b < schedule.microbatches(); ++b) {
    for (int s = 0; s < schedule.stages(); ++s) homes.push_back(schedule.home(s, b).code());
  }
  const auto stages = schedule.stages();
  if (std::equal(homes.begin() + stages, homes.end(), homes.begin())) homes.resize(index(stages));
  return homes;
}

ordered_json schedule_data(const Schedule& schedule) {
  ordered_json data = {{"name", schedule.name()},
                       {"workers", schedule.workers()},
                       {"stages", schedule.stages()},
                       {"microbatches", schedule.microbatches()},
                       {"split_backward", schedule.split_backward()},
                       {"discipline", to_string(schedule.discipline())},
                       {"recomputes", schedule.recomputes()},
                       {"recomputes_late", schedule.recomputes_late()}};
  if (!schedule.graph().is_chain()) data["edges"] = schedule.graph().edges();
  if (!schedule.graph().shards().empty()) {
    for (int s = 0; s < schedule.stages(); ++s) data["labels"].push_back(schedule.graph().label(s));
  }
  if (!schedule.memory_limits().empty()) data["memory_limits"] = schedule.memory_limits();
  if (schedule.copies()) data["homes"] = homes_of(schedule);
  if (schedule.slices() > 1) data["slices"] = schedule.slices();
  for (const JobId id : schedule.order()) {
    if (const JobId last = schedule.last_of_pair(id); last != id) data["pairs"].push_back({id, last});
  }
  return data;
}

ordered_json run_data(const PageRun& run) {
  std::vector<const RecordedStep*> steps;
  for (const PageTimeline& timeline : run.timelines) steps.push_back(timeline.step);
  const Ticks ticks(steps);
  ordered_json timelines = ordered_json::array();
  for (const PageTimeline& timeline : run.timelines)
    timelines.push_back(timeline_data(timeline, run.costs, ticks));
  return {{"title", run.title},
          {"unit", run.unit},
          {"tick", ticks.length()},
          {"has_bytes", run.costs.has_sizes()},
          {"schedule", schedule_data(run.timelines.front().step->planned)},
          {"timelines", std::move(timelines)},
          {"report", run.report != nullptr ? *run.report : ordered_json()}};
}

/// ASCII without "<", ">" and "&", which JSON has in strings only: so an HTML parser sees text, whatever the
/// strings are, and "</script>" or "<!--" in them ends nothing.
std::string script_text(const ordered_json& data) {
  return with_replaced(data.dump(-1, ' ', true, ordered_json::error_handler_t::replace),
                       {{'<', "\\u003c"}, {'>', "\\u003e"}, {'&', "\\u0026"}});
}

}  // namespace

PageRun compared_page_run(const std::string& title, const ComparedRun& run, const ordered_json& report) {
  return {.title = title,
          .unit = "s",
          .costs = run.costs,
          .timelines = {{"predicted", &run.predicted}, {run.found, &run.measured}},
          .report = &report};
}

ordered_json report_for_page(ordered_json report) {
  if (!report.is_object()) return report;
  report.erase("offsets");
  if (const auto explain = report.find("explain"); explain != report.end() && explain->is_object())
    explain->erase("record");
  if (const auto policies = report.find("policies"); policies != report.end() && policies->is_array()) {
    for (ordered_json& policy : *policies) {
      if (policy.is_object()) policy.erase("record");
    }
  }
  return report;
}

bool has_page() { return !page_template().empty(); }

void require_page(std::string_view option) {
  if (has_page()) return;
  throw InputError(
      fmt::format("{}: this starpipe was built without the report page; install npm and build it again "
                  "(docs/install.md)",
                  option));
}

std::string report_page(std::span<const PageRun> runs) {
  require_page("report page");
  const std::string_view page = page_template();
  const std::size_t mark = page.find(data_mark);
  if (mark == std::string_view::npos) throw std::logic_error("the page has no place for data");
  ordered_json data = {{"version", data_version},
                       {"program", fmt::format("starpipe {} ({})", starpipe::version, commit())},
                       {"runs", ordered_json::array()}};
  for (const PageRun& run : runs) data["runs"].push_back(run_data(run));
  std::string html(page.substr(0, mark));
  html += script_text(data);
  html += page.substr(mark + data_mark.size());
  return html;
}

ordered_json timeline_data(const PageTimeline& timeline, const Costs& costs, const Ticks& ticks) {
  const RecordedStep& step = *timeline.step;
  return {{"title", timeline.title},           {"figures", figures_of(step)},
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
