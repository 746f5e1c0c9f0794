// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/formats/trace_json.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "starpipe/plan/simulate/memory_over_time.hpp"

namespace starpipe::plan {

// Format: "Trace Event Format",
// https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU (times in microseconds).
nlohmann::ordered_json trace_json(std::span<const TracedRun> runs, double microseconds_per_unit) {
  using nlohmann::ordered_json;
  ordered_json events = ordered_json::array();
  const auto metadata = [&](const char* what, int pid, int tid, ordered_json args) {
    events.push_back({{"ph", "M"}, {"name", what}, {"pid", pid}, {"tid", tid}, {"args", std::move(args)}});
  };

  int pid = 0;
  for (const TracedRun& run : runs) {
    ++pid;  // from 1: Perfetto takes process 0 for the idle task
    const Schedule& schedule = *run.schedule;
    const double origin = first_start(*run.timeline);
    const auto microseconds = [&](double time) { return (time - origin) * microseconds_per_unit; };
    metadata("process_name", pid, 0, {{"name", run.name}});
    metadata("process_sort_index", pid, 0, {{"sort_index", pid}});

    const auto& rows = run.timeline->order;
    for (std::size_t w = 0; w < rows.size(); ++w) {
      const int tid = static_cast<int>(w) + 1;
      metadata("thread_name", pid, tid, {{"name", fmt::format("worker {}", w)}});
      metadata("thread_sort_index", pid, tid, {{"sort_index", tid}});
      for (const JobId id : rows[w]) {
        const Job job = schedule.job(id);
        const Span span = run.timeline->spans[id];
        events.push_back({{"ph", "X"},
                          {"name", to_string(job)},
                          {"cat", to_string(job.pass)},
                          {"pid", pid},
                          {"tid", tid},
                          {"ts", microseconds(span.start)},
                          {"dur", (span.end - span.start) * microseconds_per_unit},
                          {"args",
                           {{"stage", job.stage},
                            {"microbatch", job.microbatch},
                            {"pass", to_string(job.pass)},
                            {"weights_from", schedule.placement(id).weights}}}});
      }
    }

    const auto live = memory_over_time(schedule, Costs{}, *run.timeline);
    for (std::size_t w = 0; w < live.size(); ++w) {
      for (const MemoryStep& step : live[w]) {
        events.push_back({{"ph", "C"},
                          {"name", fmt::format("live activations, worker {}", w)},
                          {"pid", pid},
                          {"tid", static_cast<int>(w) + 1},
                          {"ts", microseconds(step.time)},
                          {"args", {{"stashes", step.stashes}}}});
      }
    }
  }
  return {{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}};
}

}  // namespace starpipe::plan
