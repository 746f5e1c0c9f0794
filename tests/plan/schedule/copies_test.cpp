// SPDX-License-Identifier: Apache-2.0
// Stashes that are copied to a home and back: the jobs O and L, what they wait for, and what `check` proves.
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
#include "support/random_schedules.hpp"
#include "support/rounds.hpp"

namespace starpipe::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// One worker that computes F of three micro-batches, then their BW in the same order. `n`: by the names of
/// jobs. Stashes of the micro-batches in `homes` are copied.
Schedule on_one_worker(const std::map<std::string, int>& n, std::vector<Home> homes) {
  return Schedule({.name = "one",
                   .microbatches = static_cast<int>(homes.size()),
                   .placement = [](const Job&) { return Placement{}; },
                   .priority = [n](const Job& job) { return n.at(to_string(job)); },
                   .home = [homes](int, int b) { return homes[index(b)]; }});
}

std::vector<std::string> names(const Schedule& schedule, std::span<const JobId> jobs) {
  std::vector<std::string> all;
  for (const JobId id : jobs) all.push_back(to_string(schedule.job(id)));
  return all;
}

std::vector<std::string> preds(const Schedule& schedule, const std::string& name) {
  std::vector<std::string> all;
  for (const JobId id : schedule.order()) {
    if (to_string(schedule.job(id)) != name) continue;
    schedule.for_each_pred(id, [&](JobId before) { all.push_back(to_string(schedule.job(before))); });
  }
  return all;
}

const std::map<std::string, int> two_at_once = {
    {"F(0,0)", 0}, {"F(0,1)", 1}, {"O(0,0)", 2},  {"F(0,2)", 3}, {"L(0,0)", 5},  {"BW(0,0)", 6},
    {"O(0,1)", 4}, {"L(0,1)", 8}, {"BW(0,1)", 9}, {"O(0,2)", 7}, {"L(0,2)", 10}, {"BW(0,2)", 11}};

TEST(Copies, AreJobsBesideThoseOfTheWorker) {
  const Schedule schedule = on_one_worker(two_at_once, {Home::host, Home::disk, Home::worker});
  EXPECT_TRUE(schedule.copies());
  EXPECT_TRUE(schedule.copies(0, 1));
  EXPECT_FALSE(schedule.copies(0, 2));
  EXPECT_EQ(schedule.home(0, 1), Home::disk);
  EXPECT_EQ(schedule.job_count(), 10U);
  EXPECT_THAT(names(schedule, schedule.order(0)),
              ElementsAre("F(0,0)", "F(0,1)", "F(0,2)", "BW(0,0)", "BW(0,1)", "BW(0,2)"));
  EXPECT_THAT(names(schedule, schedule.copies_of(0)), ElementsAre("O(0,0)", "O(0,1)", "L(0,0)", "L(0,1)"));
  EXPECT_TRUE(schedule.copies_of(1).empty());
  for (const JobId id : schedule.order()) EXPECT_EQ(schedule.find(schedule.job(id)), id);
  EXPECT_FALSE(schedule.find({0, 2, Pass::O}));
  EXPECT_FALSE(schedule.find({0, 0, Pass::R}));
}

// F(0,2) waits for O(0,0), before it by n, and not for O(0,1), which comes later. L(0,1) waits for BW(0,0),
// which frees memory.
TEST(Copies, WaitForMemoryByN) {
  const Schedule schedule = on_one_worker(two_at_once, {Home::host, Home::host, Home::host});
  EXPECT_THAT(preds(schedule, "F(0,1)"), ElementsAre());
  EXPECT_THAT(preds(schedule, "F(0,2)"), ElementsAre("O(0,0)"));
  EXPECT_THAT(preds(schedule, "O(0,1)"), ElementsAre("F(0,1)", "O(0,0)"));
  EXPECT_THAT(preds(schedule, "L(0,0)"), ElementsAre("O(0,0)", "O(0,1)"));
  EXPECT_THAT(preds(schedule, "BW(0,0)"), ElementsAre("L(0,0)"));
  EXPECT_THAT(preds(schedule, "L(0,1)"), ElementsAre("O(0,1)", "L(0,0)", "O(0,2)", "BW(0,0)"));
  EXPECT_EQ(stashes_in_order(schedule), std::vector{2});
  EXPECT_EQ(check(schedule).problem, "");
}

TEST(Copies, KeepTheMemoryLimitOfAWorker) {
  const Schedule schedule = on_one_worker(two_at_once, {Home::host, Home::host, Home::host});
  EXPECT_EQ(check(schedule.with(Discipline::ordered, {2})).problem, "");
  EXPECT_THAT(check(schedule.with(Discipline::ordered, {1})).problem,
              HasSubstr("F(0,1) needs stash number 2, over its memory limit of 1"));
}

TEST(Copies, NeedAnOrder) {
  const Schedule schedule = on_one_worker(two_at_once, {Home::host, Home::worker, Home::worker});
  EXPECT_THAT(
      check(schedule.with(Discipline::greedy)).problem,
      HasSubstr(
          "homes to which stashes are copied need an ordered schedule, in which n says when memory is free"));
  EXPECT_THAT(check(schedule.with(Discipline::bounded, {3})).problem, HasSubstr("this one is bounded"));
}

// L frees no memory, and F would wait for it.
TEST(Copies, ThatWaitForEachOtherAreACycle) {
  std::map<std::string, int> n = two_at_once;
  n["O(0,0)"] = -1;  // before its F
  const CheckResult result = check(on_one_worker(n, {Home::host, Home::host, Home::host}));
  EXPECT_THAT(result.problem, HasSubstr("it can never finish"));
  EXPECT_THAT(result.problem, HasSubstr("O(0,0)"));
  n = two_at_once;
  n["L(0,0)"] = 12;  // after its BW
  EXPECT_THAT(check(on_one_worker(n, {Home::host, Home::host, Home::host})).problem, HasSubstr("L(0,0)"));
}

TEST(Copies, NeedOneWorkerForAStash) {
  const Schedule schedule({.workers = 2,
                           .placement =
                               [](const Job& job) {
                                 const int worker = job.pass == Pass::F ? 0 : 1;
                                 return Placement{worker, worker};
                               },
                           .priority = [](const Job&) { return 0; },
                           .home = [](int, int) { return Home::disk; }});
  EXPECT_THAT(check(schedule).problem, HasSubstr("but BW(0,0) runs on worker 1 and F(0,0) on 0"));
}

// Memory would be free when F of the other stage has ended, which n does not say.
TEST(Copies, NeedOneWorkerForStashesThatStayToo) {
  const Schedule schedule({.graph = StageGraph::chain(2),
                           .workers = 2,
                           .placement =
                               [](const Job& job) {
                                 const int worker = job.stage == 1 && job.pass != Pass::F ? 1 : 0;
                                 return Placement{worker, worker};
                               },
                           .priority =
                               [](const Job& job) {
                                 return job.pass == Pass::F || job.pass == Pass::O ? job.stage
                                                                                   : 9 - job.stage;
                               },
                           .home = [](int stage, int) { return stage == 0 ? Home::host : Home::worker; }});
  EXPECT_THAT(check(schedule).problem, HasSubstr("but BW(1,0) runs on worker 1 and F(1,0) on 0"));
}

// By default a copy has the time of one job: O(0,1) may last until the end of the job after F(0,1), and
// L(0,1) may begin with the job before BW(0,1).
TEST(Copies, OverlapOneJobByDefault) {
  const Schedule kept = make_schedule("1f1b", {.workers = 2, .microbatches = 4});
  const Schedule schedule =
      kept.with_homes([](int stage, int) { return stage == 0 ? Home::host : Home::worker; });
  EXPECT_EQ(check(schedule).problem, "");
  EXPECT_THAT(names(schedule, schedule.order_with_copies(0)),
              ElementsAre("F(0,0)", "F(0,1)", "O(0,0)", "L(0,0)", "BW(0,0)", "O(0,1)", "L(0,1)", "F(0,2)",
                          "BW(0,1)", "O(0,2)", "L(0,2)", "F(0,3)", "BW(0,2)", "O(0,3)", "L(0,3)", "BW(0,3)"));
  const Schedule back = schedule.with_homes([](int, int) { return Home::worker; });
  EXPECT_EQ(names(back, back.order(0)), names(kept, kept.order(0)));
  EXPECT_FALSE(back.copies());
}

TEST(Copies, OfEveryOrderedNamedScheduleCanFinish) {
  for (const ScheduleEntry& entry : schedule_entries()) {
    ScheduleRequest request{.workers = 4, .microbatches = 8};
    if (entry.name == "lpp" || entry.name == "fslpp") request.groups = 2;
    const Schedule named = make_schedule(entry.name, request);
    if (named.discipline() != Discipline::ordered) continue;
    SCOPED_TRACE(entry.name);
    const Schedule copied = named.with_homes([](int, int) { return Home::host; });
    EXPECT_EQ(check(copied).problem, "");
    EXPECT_EQ(copied.spec().home(0, 0), Home::host);
    EXPECT_TRUE(Schedule(copied.spec()) == copied);
  }
}

TEST(Copies, KeepTheirHomesAndNWhereOthersChange) {
  testing::Random random(7);
  for (int round = 0; round < rounds(200); ++round) {
    const Schedule schedule = testing::sound_schedule(random, Discipline::ordered);
    SCOPED_TRACE(round);
    EXPECT_TRUE(Schedule(schedule.spec()) == schedule);
    const auto own = [&](int s, int b) { return schedule.home(s, b); };
    const Schedule again = schedule.with_homes(own);
    ASSERT_EQ(again.id_count(), schedule.id_count());
    for (const JobId id : schedule.order()) EXPECT_EQ(again.turn(id), schedule.turn(id));
    EXPECT_TRUE(again == schedule);
  }
}

}  // namespace
}  // namespace starpipe::plan
