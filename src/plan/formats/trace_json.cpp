// SPDX-License-Identifier: Apache-2.0
#include "plan/formats/trace_json.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "plan/simulate/memory_over_time.hpp"

namespace starpipe::plan {
namespace {

// Returns the spans of the jobs in whole nanoseconds, by job. The trace viewer counts in these, and drops a
// slice that ends within the next one of its row: so each start and end is rounded, instead of start and
// duration, and a job starts where the one before it has ended.
std::vector<Span> in_nanoseconds(const Schedule& schedule, const Timeline& timeline,
                                 double nanoseconds_per_unit) {
  const double origin = first_start(timeline);
  const auto rounded = [&](double time) { return std::round((time - origin) * nanoseconds_per_unit); };
  std::vector<Span> spans(timeline.spans.size());
  for (const auto& row : timeline.order) {
    double previous = 0;
    for (const JobId id : row) {
      const double start = std::max(previous, rounded(timeline.spans[id].start));
      spans[id] = {start, std::max(start, rounded(timeline.spans[id].end))};
      previous = spans[id].end;
    }
  }
  for (int worker = 0; worker < schedule.workers(); ++worker) {
    for (const JobId id : schedule.copies_of(worker)) {
      const double start = rounded(timeline.spans[id].start);
      spans[id] = {start, std::max(start, rounded(timeline.spans[id].end))};
    }
  }
  return spans;
}

// Returns the microseconds that the trace viewer reads as this number of nanoseconds, both in versions that
// round and in versions that cut off (1.001 * 1000 is 1000.9999999999999).
double microseconds(double nanoseconds) {
  const double result = nanoseconds / 1000;
  return result * 1000 < nanoseconds ? std::nextafter(result, 2 * result) : result;
}

// Appends an arrow for each result that a job reads from another worker: a flow event "s" in the slice of the
// producer, and one "f" in the slice of the job. Flow events belong to the slice that encloses them. The end
// of a slice is outside, so "s" is up to 10 ns before the end.
void add_arrows(const Schedule& schedule, const std::vector<Span>& spans, int pid, int& arrows,
                nlohmann::ordered_json& events) {
  const auto event = [&](const char* phase, JobId id, double time) {
    return nlohmann::ordered_json{{"ph", phase},
                                  {"name", "result"},
                                  {"cat", "dependency"},
                                  {"id", arrows},
                                  {"pid", pid},
                                  {"tid", schedule.compute(id) + 1},
                                  {"ts", microseconds(time)}};
  };
  for (const JobId id : schedule.order()) {
    schedule.for_each_pred(id, [&](JobId producer) {
      if (schedule.compute(producer) == schedule.compute(id)) return;
      ++arrows;
      const Span& span = spans[producer];
      events.push_back(event("s", producer, std::max(span.start, span.end - 10)));
      events.push_back(event("f", id, spans[id].start));
      events.back()["bp"] = "e";
    });
  }
}

}  // namespace

// Format: "Trace Event Format",
// https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU (times in microseconds).
nlohmann::ordered_json trace_json(std::span<const DrawnRun> runs, double microseconds_per_unit) {
  using nlohmann::ordered_json;
  ordered_json events = ordered_json::array();
  const auto metadata = [&](const char* what, int pid, int tid, ordered_json args) {
    events.push_back({{"ph", "M"}, {"name", what}, {"pid", pid}, {"tid", tid}, {"args", std::move(args)}});
  };

  int pid = 0;
  int arrows = 0;
  for (const DrawnRun& run : runs) {
    ++pid;  // from 1: Perfetto takes process 0 for the idle task
    const Schedule& schedule = *run.schedule;
    const std::vector<Span> spans = in_nanoseconds(schedule, *run.timeline, 1000 * microseconds_per_unit);
    metadata("process_name", pid, 0, {{"name", run.title}});
    metadata("process_sort_index", pid, 0, {{"sort_index", pid}});

    int last_tid = 0;
    const auto add_row = [&](int tid, const std::string& name, std::span<const JobId> jobs) {
      last_tid = std::max(last_tid, tid);
      metadata("thread_name", pid, tid, {{"name", name}});
      metadata("thread_sort_index", pid, tid, {{"sort_index", tid}});
      for (const JobId id : jobs) {
        const Job job = schedule.job(id);
        const Span span = spans[id];
        events.push_back({{"ph", "X"},
                          {"name", to_string(job)},
                          {"cat", to_string(job.pass)},
                          {"pid", pid},
                          {"tid", tid},
                          {"ts", microseconds(span.start)},
                          {"dur", microseconds(span.end - span.start)},
                          {"args",
                           {{"stage", job.stage},
                            {"microbatch", job.microbatch},
                            {"pass", to_string(job.pass)},
                            {"weights_from", schedule.placement(id).weights}}}});
        if (const auto shard = schedule.graph().shard(job.stage)) events.back()["args"]["shard"] = *shard;
      }
    };
    const auto& rows = run.timeline->order;
    for (std::size_t w = 0; w < rows.size(); ++w)
      add_row(static_cast<int>(w) + 1, fmt::format("worker {}", w), rows[w]);
    // Behind the workers, whose threads have their numbers.
    for (int w = 0; w < schedule.workers(); ++w) {
      for (const Channel channel : {Channel::out, Channel::in}) {
        const std::vector<JobId> copies = schedule.copies_of(w, channel);
        const char* const way = channel == Channel::out ? "out" : "in";
        if (!copies.empty()) add_row(last_tid + 1, fmt::format("worker {}, copies {}", w, way), copies);
      }
    }

    add_arrows(schedule, spans, pid, arrows, events);

    const double origin = first_start(*run.timeline);
    const auto live = memory_over_time(schedule, Costs{}, *run.timeline);
    for (std::size_t w = 0; w < live.size(); ++w) {
      for (const MemoryStep& step : live[w]) {
        events.push_back(
            {{"ph", "C"},
             {"name", fmt::format("live stashes, worker {}", w)},
             {"pid", pid},
             {"tid", static_cast<int>(w) + 1},
             {"ts", microseconds(std::round((step.time - origin) * 1000 * microseconds_per_unit))},
             {"args", {{"stashes", step.stashes}}}});
      }
    }
  }
  return {{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}};
}

}  // namespace starpipe::plan
