// SPDX-License-Identifier: Apache-2.0
// Stashes that wait on another worker: the channels and the memory of both, and the links between them.
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

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::vector<std::string> names(const Schedule& schedule, std::span<const JobId> jobs) {
  std::vector<std::string> all;
  for (const JobId id : jobs) all.push_back(to_string(schedule.job(id)));
  return all;
}

std::vector<std::string> preds(const Schedule& schedule, const Job& job) {
  std::vector<std::string> all;
  schedule.for_each_pred(*schedule.find(job),
                         [&](JobId before) { all.push_back(to_string(schedule.job(before))); });
  return all;
}

/// Two workers with one stage each, and two micro-batches. Stage 0 has its stashes on worker 1.
Schedule two_workers(const std::map<std::string, int>& n) {
  return Schedule({.name = "two",
                   .graph = StageGraph::chain(2),
                   .microbatches = 2,
                   .workers = 2,
                   .placement =
                       [](const Job& job) {
                         return Placement{job.stage, job.stage};
                       },
                   .priority = [n](const Job& job) { return n.at(to_string(job)); },
                   .home = [](int stage, int) { return stage == 0 ? Home::at(1) : Home::worker; }});
}

const std::map<std::string, int> one_at_once = {
    {"F(0,0)", 0},  {"O(0,0)", 1}, {"F(0,1)", 2}, {"F(1,0)", 3},  {"BW(1,0)", 4}, {"L(0,0)", 5},
    {"BW(0,0)", 6}, {"O(0,1)", 7}, {"F(1,1)", 8}, {"BW(1,1)", 9}, {"L(0,1)", 10}, {"BW(0,1)", 11}};

TEST(PeerStashes, UseAChannelOfBothWorkers) {
  const Schedule schedule = two_workers(one_at_once);
  const JobId out = *schedule.find({0, 0, Pass::O});
  const JobId back = *schedule.find({0, 0, Pass::L});
  EXPECT_EQ(schedule.ends(out), std::pair(0, 1));
  EXPECT_EQ(schedule.ends(back), std::pair(1, 0));
  EXPECT_THAT(names(schedule, schedule.copies_of(1)), ElementsAre("O(0,0)", "L(0,0)", "O(0,1)", "L(0,1)"));
  EXPECT_THAT(names(schedule, schedule.copies_of(1, Channel::in)), ElementsAre("O(0,0)", "O(0,1)"));
  EXPECT_THAT(names(schedule, schedule.copies_of(0, Channel::in)), ElementsAre("L(0,0)", "L(0,1)"));
  EXPECT_EQ(check(schedule).problem, "");
}

// O(0,1) takes memory of worker 1, so it waits for L(0,0) and BW(1,0), which free some there before it by n.
TEST(PeerStashes, WaitForMemoryOfTheOtherWorker) {
  const Schedule schedule = two_workers(one_at_once);
  EXPECT_THAT(preds(schedule, {0, 1, Pass::O}), ElementsAre("F(0,1)", "O(0,0)", "L(0,0)", "BW(1,0)"));
  EXPECT_THAT(preds(schedule, {1, 1, Pass::F}), ElementsAre("F(0,1)", "L(0,0)"));
  EXPECT_THAT(preds(schedule, {0, 1, Pass::L}), ElementsAre("O(0,1)", "L(0,0)", "BW(0,0)"));
  EXPECT_EQ(stashes_in_order(schedule), (std::vector{2, 2}));
  EXPECT_EQ(check(schedule.with(Discipline::ordered, {2, 2})).problem, "");
  EXPECT_THAT(check(schedule.with(Discipline::ordered, {2, 1})).problem,
              HasSubstr("worker 1: F(1,0) needs stash number 2"));
}

TEST(PeerStashes, AreTransfersBetweenWorkers) {
  const Schedule schedule = two_workers(one_at_once);
  const Costs costs{.durations = {{1, 1, 1}}, .sizes = {{.stash = 100}}, .links = Link{.beta = 0.01}};
  const Timeline timeline = simulate(schedule, costs);
  const Span out = timeline.spans[*schedule.find({0, 0, Pass::O})];
  EXPECT_EQ(out.start, 1);
  EXPECT_EQ(out.end, 2);
  EXPECT_EQ(timeline.received[1].stashes.count, 2U);
  EXPECT_EQ(timeline.received[1].stashes.bytes, 200U);
  EXPECT_EQ(timeline.received[0].stashes.bytes, 200U);
  EXPECT_EQ(timeline.received[0].reloads.count, 0U);
  EXPECT_EQ(timeline.peak_stashes, (std::vector{2, 2}));
  Costs own = costs;
  own.peer = HomeLink{.link = {.alpha = 5}};
  const Timeline slow = simulate(schedule, own);
  EXPECT_EQ(slow.spans[*schedule.find({0, 0, Pass::O})].end, 6);
}

// The activation of F(0,0) and the stash leave worker 0 at once, and a port passes one at a time.
TEST(PeerStashes, ShareThePortsOfTheirWorkers) {
  const Schedule schedule = two_workers(one_at_once);
  Costs costs{.durations = {{1, 1, 1}}, .sizes = {{.activation = 100, .stash = 100}}};
  costs.links = Links({{.link = {.beta = 0.01}, .sharing = Sharing::in_order}});
  const Timeline timeline = simulate(schedule, costs);
  const double copied = timeline.spans[*schedule.find({0, 0, Pass::O})].end;
  const double computed = timeline.spans[*schedule.find({1, 0, Pass::F})].start;
  EXPECT_EQ(std::max(copied, computed), 3);
  EXPECT_EQ(std::min(copied, computed), 2);
}

TEST(PeerStashes, OnTheWorkerItselfStay) {
  const Schedule kept = make_schedule("1f1b", {.workers = 4, .microbatches = 8});
  const Schedule same = kept.with_homes([](int stage, int) { return Home::at(stage); });
  EXPECT_FALSE(same.copies());
  EXPECT_TRUE(same == kept);
  const Schedule beyond =
      kept.with_homes([](int stage, int) { return stage == 0 ? Home::at(7) : Home::worker; });
  EXPECT_THAT(check(beyond).problem,
              HasSubstr("O(0,0) copies a stash to or from worker 7, which does not exist (workers 0..3)"));
}

// Every named schedule with one worker a stash can have its stashes on any other worker, with the order of
// each worker as it was. The peaks are those that n says, at most, however long copies take.
TEST(PeerStashes, OfEveryOrderedNamedScheduleCanFinish) {
  for (const ScheduleEntry& entry : schedule_entries()) {
    ScheduleRequest request{.workers = 4, .microbatches = 8};
    if (entry.name == "lpp" || entry.name == "fslpp") request.groups = 2;
    const Schedule named = make_schedule(entry.name, request);
    if (named.discipline() != Discipline::ordered) continue;
    SCOPED_TRACE(entry.name);
    const Schedule moved = named.with_homes([&](int s, int b) {
      return (s + b) % 3 == 0 ? Home::worker : Home::at(3 - named.compute(named.forward(s, b)));
    });
    ASSERT_EQ(check(moved).problem, "");
    EXPECT_TRUE(moved.has_peers());
    for (int w = 0; w < 4; ++w) EXPECT_EQ(names(moved, moved.order(w)), names(named, named.order(w)));
    const std::vector<int> most = stashes_in_order(moved);
    for (const double time : {0.0, 0.5, 4.0}) {
      Costs costs;
      costs.peer = HomeLink{.link = {.alpha = time}};
      const Timeline timeline = simulate(moved, costs);
      for (std::size_t w = 0; w < most.size(); ++w) EXPECT_LE(timeline.peak_stashes[w], most[w]);
    }
  }
}

TEST(PeerStashes, HomesAsText) {
  EXPECT_EQ(to_string(Home::at(12)), "worker:12");
  EXPECT_EQ(parse_home("worker:12"), Home::at(12));
  EXPECT_EQ(parse_home("disk"), Home::disk);
  for (const char* text : {"worker:", "worker:-1", "worker:1x", "peer", "worker:99999999999"}) {
    EXPECT_THAT([&] { parse_home(text); }, ThrowsMessage<InputError>(HasSubstr("or worker:N for worker N")));
  }
}

}  // namespace
}  // namespace starpipe::plan
