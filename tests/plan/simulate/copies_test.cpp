// SPDX-License-Identifier: Apache-2.0
// Copies of stashes over time: their channels, their links, and what a worker holds meanwhile.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/simulate.hpp"
#include "support/random_schedules.hpp"
#include "support/rounds.hpp"

namespace starpipe::plan {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

Costs with_copies(double time) {
  return {.durations = {{1, 1, 1}}, .host = HomeLink{.link = {.alpha = time}}, .disk = HomeLink{}};
}

Span span_of(const Schedule& schedule, const Timeline& timeline, const Job& job) {
  return timeline.spans[*schedule.find(job)];
}

void expect_span(const Schedule& schedule, const Timeline& timeline, const Job& job, double start,
                 double end) {
  const Span span = span_of(schedule, timeline, job);
  EXPECT_EQ(span.start, start) << to_string(job);
  EXPECT_EQ(span.end, end) << to_string(job);
}

/// One stage and one worker: F of all micro-batches, then BW in the same order. All stashes are copied.
Schedule one_worker(int microbatches, const std::map<std::string, int>& n) {
  return Schedule({.name = "one",
                   .microbatches = microbatches,
                   .placement = [](const Job&) { return Placement{}; },
                   .priority = [n](const Job& job) { return n.at(to_string(job)); },
                   .home = [](int, int) { return Home::host; }});
}

// F0 F1 run at once, since O(0,0) comes after F1 by n. BW lasts 2.
TEST(CopiedStashes, WaitForMemoryAndNotForMore) {
  const Schedule schedule = one_worker(2, {{"F(0,0)", 0},
                                           {"F(0,1)", 1},
                                           {"O(0,0)", 2},
                                           {"O(0,1)", 3},
                                           {"L(0,0)", 4},
                                           {"L(0,1)", 5},
                                           {"BW(0,0)", 6},
                                           {"BW(0,1)", 7}});
  const Timeline timeline = simulate(schedule, with_copies(3));
  expect_span(schedule, timeline, {0, 0, Pass::F}, 0, 1);
  expect_span(schedule, timeline, {0, 1, Pass::F}, 1, 2);
  expect_span(schedule, timeline, {0, 0, Pass::O}, 1, 4);
  expect_span(schedule, timeline, {0, 1, Pass::O}, 4, 7);   // one copy at a time
  expect_span(schedule, timeline, {0, 0, Pass::L}, 7, 10);  // both O come before by n
  expect_span(schedule, timeline, {0, 1, Pass::L}, 10, 13);
  expect_span(schedule, timeline, {0, 0, Pass::BW}, 10, 12);
  expect_span(schedule, timeline, {0, 1, Pass::BW}, 13, 15);
  EXPECT_EQ(timeline.makespan, 15);
  EXPECT_EQ(timeline.peak_stashes, std::vector{2});
  EXPECT_EQ(timeline.busy, std::vector{6.0});  // copies take no time of the worker
  EXPECT_EQ(timeline.received[0].reloads.count, 2U);
}

// The same with O(0,0) before F1 by n, and L(0,1) after BW(0,0): one stash at a time.
TEST(CopiedStashes, HoldOneAtATimeIfNSaysSo) {
  const Schedule schedule = one_worker(2, {{"F(0,0)", 0},
                                           {"O(0,0)", 1},
                                           {"F(0,1)", 2},
                                           {"O(0,1)", 3},
                                           {"L(0,0)", 4},
                                           {"BW(0,0)", 5},
                                           {"L(0,1)", 6},
                                           {"BW(0,1)", 7}});
  const Timeline timeline = simulate(schedule, with_copies(3));
  expect_span(schedule, timeline, {0, 1, Pass::F}, 4, 5);
  expect_span(schedule, timeline, {0, 0, Pass::L}, 8, 11);
  expect_span(schedule, timeline, {0, 1, Pass::L}, 13, 16);
  EXPECT_EQ(timeline.makespan, 18);
  EXPECT_EQ(timeline.peak_stashes, std::vector{1});
}

TEST(CopiedStashes, TakeTheirBytesOverTheLink) {
  const Schedule schedule =
      make_schedule("gpipe", {.workers = 1, .microbatches = 1}).with_homes([](int, int) {
        return Home::disk;
      });
  const Costs costs{.durations = {{1, 1, 1}},
                    .sizes = {{.stash = 100}},
                    .disk = HomeLink{.link = {.alpha = 0.5, .beta = 0.01}}};
  const Timeline timeline = simulate(schedule, costs);
  expect_span(schedule, timeline, {0, 0, Pass::O}, 1, 2.5);
  expect_span(schedule, timeline, {0, 0, Pass::L}, 2.5, 4);
  EXPECT_EQ(costs.time(schedule, schedule.offload(0, 0)), 1.5);
  EXPECT_EQ(timeline.peak_stash_bytes, std::vector<std::uint64_t>{100});
  EXPECT_EQ(timeline.received[0].reloads.bytes, 100U);
}

// Two workers whose copies share a link run them at half the speed; a third worker has a link of its own.
TEST(CopiedStashes, ShareALinkFairly) {
  const Schedule schedule =
      make_schedule("ddp", {.workers = 3, .microbatches = 3}).with_homes([](int, int) { return Home::host; });
  const Costs costs{.durations = {{1, 1, 1}},
                    .sizes = {{.stash = 100}},
                    .host = HomeLink{.link = {.beta = 0.01}, .workers = 2}};
  const Timeline timeline = simulate(schedule, costs);
  for (int b = 0; b < 3; ++b) {
    const int worker = schedule.compute(schedule.forward(0, b));
    const Span o = span_of(schedule, timeline, {0, b, Pass::O});
    EXPECT_NEAR(o.end - o.start, worker < 2 ? 2 : 1, 1e-12) << "worker " << worker;
  }
}

TEST(CopiedStashes, NeedTheTimeOfACopy) {
  const Schedule schedule =
      make_schedule("gpipe", {.workers = 2, .microbatches = 2}).with_homes([](int, int) {
        return Home::host;
      });
  EXPECT_THAT([&] { simulate(schedule, {.disk = HomeLink{}}); },
              ThrowsMessage<InputError>(HasSubstr("home host: the time of a copy to the host is not known")));
}

TEST(CopiedStashes, OverlapPassesWhereTheyFit) {
  const Schedule kept = make_schedule("1f1b", {.workers = 4, .microbatches = 16});
  const Schedule copied = kept.with_homes([](int s, int) { return s == 0 ? Home::host : Home::worker; });
  const Timeline before = simulate(kept, with_copies(0));
  const Timeline after = simulate(copied, with_copies(1));
  EXPECT_EQ(after.makespan, before.makespan);
  EXPECT_EQ(before.peak_stashes[0], 4);
  EXPECT_LT(after.peak_stashes[0], 4);
}

/// No run holds more stashes than its order of n says, whatever copies take.
TEST(CopiedStashes, NeverHoldMoreThanNSays) {
  testing::Random random(11);
  int copied = 0;
  for (int round = 0; round < rounds(1000); ++round) {
    const Schedule schedule = testing::sound_schedule(random, Discipline::ordered);
    if (!schedule.copies()) continue;
    ++copied;
    SCOPED_TRACE(round);
    Costs costs = testing::random_costs(random, schedule.stages());
    const std::vector<int> most = stashes_in_order(schedule);
    for (const double time : {0.0, 0.25, 100.0}) {
      costs.host = costs.disk = HomeLink{.link = {.alpha = time}, .workers = testing::between(random, 1, 3)};
      const Timeline timeline = simulate(schedule, costs);
      for (std::size_t w = 0; w < most.size(); ++w) EXPECT_LE(timeline.peak_stashes[w], most[w]);
    }
  }
  EXPECT_GE(copied, rounds(50));
}

/// Given durations of copies replace their links.
TEST(CopiedStashes, TakeGivenTimes) {
  testing::Random random(12);
  for (int round = 0; round < rounds(200); ++round) {
    const Schedule schedule = testing::sound_schedule(random, Discipline::ordered);
    const Costs costs = testing::random_costs(random, schedule.stages());
    const Timeline timeline = simulate(schedule, costs);
    JobTimes times;
    times.duration.assign(schedule.id_count(), 0);
    for (const JobId id : schedule.order()) times.duration[id] = costs.time(schedule, id);
    SCOPED_TRACE(round);
    EXPECT_EQ(simulate(schedule, costs, times).makespan, timeline.makespan);
  }
}

}  // namespace
}  // namespace starpipe::plan
