// SPDX-License-Identifier: Apache-2.0
// Traces for the trace viewer.
#include "plan/formats/trace_json.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "plan/formats/json_value.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/formats/schedule_csv.hpp"
#include "starpipe/plan/formats/schedule_json.hpp"
#include "starpipe/plan/simulate/simulate.hpp"
#include "support/schedules.hpp"

namespace starpipe::plan {
namespace {

using namespace nlohmann::literals;

TEST(TraceJson, HasAnEventPerJobAndCountersThatReachThePeaks) {
  for (const Schedule& schedule : examples()) {
    const Timeline timeline = simulate(schedule);
    const std::vector<DrawnRun> runs = {{"predicted", &schedule, &timeline},
                                        {"measured", &schedule, &timeline}};

    const auto trace = trace_json(runs, 1000);

    std::size_t jobs = 0;
    std::map<int, std::string> processes;
    std::vector<int> peaks(index(schedule.workers()));
    for (const auto& event : trace["traceEvents"]) {
      if (event["ph"] == "X") ++jobs;
      if (event["name"] == "process_name") processes[event["pid"]] = event["args"]["name"];
      if (event["ph"] == "C") {
        auto& peak = peaks[event["tid"].get<std::size_t>() - 1];
        peak = std::max(peak, event["args"]["stashes"].get<int>());
      }
    }
    EXPECT_EQ(jobs, 2 * schedule.job_count());
    EXPECT_EQ(processes, (std::map<int, std::string>{{1, "predicted"}, {2, "measured"}}));
    EXPECT_EQ(peaks, timeline.peak_stashes) << schedule.name();
  }
}

TEST(TraceJson, HasThreadsForCopies) {
  const Schedule schedule =
      named("1f1b", 2, 3).with_homes([](int s, int) { return s == 0 ? Home::host : Home::worker; });
  const Costs costs{.host = HomeLink{.link = {.alpha = 0.5}}};
  const Timeline timeline = simulate(schedule, costs);
  const DrawnRun run{"predicted", &schedule, &timeline};
  const auto trace = trace_json({&run, 1}, 1000);
  std::map<int, std::string> threads;
  std::map<int, int> slices;
  for (const auto& event : trace["traceEvents"]) {
    if (event["name"] == "thread_name") threads[event["tid"]] = event["args"]["name"];
    if (event["ph"] == "X") ++slices[event["tid"]];
  }
  EXPECT_EQ(threads,
            (std::map<int, std::string>{
                {1, "worker 0"}, {2, "worker 1"}, {3, "worker 0, copies out"}, {4, "worker 0, copies in"}}));
  EXPECT_EQ(slices, (std::map<int, int>{{1, 6}, {2, 6}, {3, 3}, {4, 3}}));
}

TEST(TraceJson, CountsMicrosecondsFromTheFirstStart) {
  const Schedule schedule = named("gpipe", 2, 2);
  Timeline timeline = simulate(schedule);
  for (Span& span : timeline.spans) span = {span.start + 100, span.end + 100};
  const DrawnRun run{"measured", &schedule, &timeline};

  const nlohmann::json trace = trace_json({&run, 1}, 1e6);

  const auto& events = trace["traceEvents"];
  const auto job =
      std::find_if(events.begin(), events.end(), [](const auto& e) { return e["name"] == "BW(1,1)"; });
  ASSERT_NE(job, events.end());
  EXPECT_EQ((*job)["ts"], 3e6);
  EXPECT_EQ((*job)["dur"], 2e6);
  EXPECT_EQ((*job)["args"], R"({"stage": 1, "microbatch": 1, "pass": "BW", "weights_from": 1})"_json);
}

// Perfetto counts in nanoseconds: older versions cut the rest off, newer ones round. It drops a slice that
// ends within the next one of its row.
TEST(TraceJson, HasNoSlicesThatOverlapInNanoseconds) {
  const auto cut_off = [](double microseconds) { return static_cast<std::int64_t>(microseconds * 1000.0); };
  const auto rounded = [](double microseconds) { return std::llround(microseconds * 1000.0); };
  std::vector<Schedule> schedules = examples();
  schedules.push_back(named("interleaved-1f1b", 4, 32, 12));
  for (const Schedule& schedule : schedules) {
    for (const Durations& durations : {Durations{1, 1, 1},
                                       {1 / 3., 1 / 3., 1 / 3.},
                                       {1.6664e-6, 1.7777e-6, 1.1e-6},
                                       {0.1234567, 0.3333333, 1.23456e-5},
                                       {1.5e-9, 2.5e-9, 0.5e-9}}) {
      SCOPED_TRACE(schedule.name() + ", F=" + std::to_string(durations.F));
      Costs costs;
      costs.durations = {durations};
      const Timeline timeline = simulate(schedule, costs);
      const DrawnRun run{"predicted", &schedule, &timeline};

      const nlohmann::json trace = trace_json({&run, 1}, 1e6);

      std::map<int, std::int64_t> free;  // by worker: the end of its last slice
      for (const auto& event : trace["traceEvents"]) {
        if (event["ph"] != "X") continue;
        const std::int64_t start = cut_off(event["ts"]);
        const std::int64_t duration = cut_off(event["dur"]);
        EXPECT_EQ(start, rounded(event["ts"]));
        EXPECT_EQ(duration, rounded(event["dur"]));
        EXPECT_GE(start, free[event["tid"]]);
        free[event["tid"]] = start + duration;
      }
    }
  }
}

TEST(TraceJson, HasAnArrowForEachResultOfAnotherWorker) {
  for (const Schedule& schedule : examples()) {
    const Timeline timeline = simulate(schedule, {.links = Link{.alpha = 0.5}});
    const std::vector<DrawnRun> runs = {{"predicted", &schedule, &timeline},
                                        {"measured", &schedule, &timeline}};

    const auto trace = trace_json(runs, 1000);

    struct Slice {
      int process, thread;
      double from, to;
      std::string name;
    };
    std::vector<Slice> slices;
    for (const auto& event : trace["traceEvents"]) {
      if (event["ph"] != "X") continue;
      const double from = event["ts"];
      slices.push_back({event["pid"], event["tid"], from, from + event["dur"].get<double>(), event["name"]});
    }
    const auto slice_of = [&](int process, int thread, double time) -> std::string {
      for (const Slice& slice : slices) {
        const bool inside = slice.from <= time && time < slice.to;
        if (slice.process == process && slice.thread == thread && inside) return slice.name;
      }
      return "nothing";
    };
    std::map<int, std::pair<std::string, std::string>> arrows;  // by id: the slices of their ends
    for (const auto& event : trace["traceEvents"]) {
      if (event["ph"] != "s" && event["ph"] != "f") continue;
      auto& [from, to] = arrows[event["id"]];
      (event["ph"] == "s" ? from : to) = slice_of(event["pid"], event["tid"], event["ts"]);
      EXPECT_EQ(event.value("bp", ""), event["ph"] == "f" ? "e" : "");
    }
    std::multiset<std::pair<std::string, std::string>> drawn;
    for (const auto& [id, arrow] : arrows) drawn.insert(arrow);
    std::multiset<std::pair<std::string, std::string>> expected;
    for (const JobId id : schedule.order()) {
      schedule.for_each_pred(id, [&](JobId producer) {
        if (schedule.compute(producer) == schedule.compute(id)) return;
        for (int run = 0; run < 2; ++run) {
          expected.insert({to_string(schedule.job(producer)), to_string(schedule.job(id))});
        }
      });
    }
    EXPECT_EQ(drawn, expected) << schedule.name();
  }
}

}  // namespace
}  // namespace starpipe::plan
