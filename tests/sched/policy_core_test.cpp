// SPDX-License-Identifier: Apache-2.0
// The policy without StarPU: the tasks that each discipline gives to workers, and their order.
#include "starpipe/sched/policy_core.hpp"

#include <array>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sched/opaque_tasks.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/schedule/check.hpp"

namespace starpipe::sched {
namespace {

using plan::Discipline;
using plan::JobId;
using plan::Schedule;

using namespace testing;

TEST(PolicyCore, OrderedWaitsForTheNextJob) {
  const Schedule schedule = one_f_one_b(2, 4);
  Tasks tasks(schedule.id_count());
  PolicyCore core(2, always);
  core.begin(schedule, two_workers);
  const auto order = schedule.order(0);
  for (std::size_t i = order.size(); i-- > 1;) {
    core.push(0, tasks[order[i]], order[i]);
    EXPECT_EQ(core.pop(0), nullptr) << "the first job is not ready";
  }
  core.push(0, tasks[order[0]], order[0]);
  for (const JobId id : order) {
    EXPECT_EQ(core.pop(0), tasks[id]) << to_string(schedule.job(id));
    core.finish(0, id);
  }
  EXPECT_EQ(core.pop(0), nullptr);
  EXPECT_EQ(core.pop(1), nullptr) << "worker 1 was given nothing";
}

TEST(PolicyCore, GreedyTakesTheSmallestThatIsReady) {
  const Schedule schedule = one_f_one_b(2, 4).with(Discipline::greedy);
  Tasks tasks(schedule.id_count());
  PolicyCore core(2, always);
  core.begin(schedule, two_workers);
  const auto order = schedule.order(0);
  core.push(0, tasks[order[5]], order[5]);
  core.push(0, tasks[order[2]], order[2]);
  core.push(0, tasks[order[3]], order[3]);
  EXPECT_EQ(core.pop(0), tasks[order[2]]);
  core.push(0, tasks[order[0]], order[0]);
  EXPECT_EQ(core.pop(0), tasks[order[0]]);
  EXPECT_EQ(core.pop(0), tasks[order[3]]);
  EXPECT_EQ(core.pop(0), tasks[order[5]]);
  EXPECT_EQ(core.pop(0), nullptr);
}

TEST(PolicyCore, BoundedRefusesUntilAStashIsGivenBack) {
  const Schedule schedule = one_f_one_b(2, 4).with(Discipline::bounded, {2, 2});
  Tasks tasks(schedule.id_count());
  PolicyCore core(2, always);
  core.begin(schedule, two_workers);
  const auto push = [&](JobId id) { core.push(0, tasks[id], id); };
  for (int b = 0; b < 4; ++b) push(schedule.forward(0, b));
  for (int b = 0; b < 2; ++b) {
    EXPECT_EQ(core.pop(0), tasks[schedule.forward(0, b)]);
    core.finish(0, schedule.forward(0, b));
  }
  EXPECT_EQ(core.pop(0), nullptr) << "two stashes are held";
  // A job that keeps no stash is not refused.
  push(schedule.backward(0, 0));
  EXPECT_EQ(core.pop(0), tasks[schedule.backward(0, 0)]);
  EXPECT_EQ(core.pop(0), nullptr) << "the stash is held until the backward pass has ended";
  core.finish(0, schedule.backward(0, 0));
  EXPECT_EQ(core.pop(0), tasks[schedule.forward(0, 2)]);
  EXPECT_EQ(core.pop(0), nullptr);
}

TEST(PolicyCore, InputsOfTheNextJobsInLineAreFetchedOnce) {
  const Schedule schedule = one_f_one_b(1, 4);
  const auto order = schedule.order(0);
  Tasks tasks(schedule.id_count());
  PolicyCore core(1, always);
  core.begin(schedule, std::array{0});
  EXPECT_TRUE(core.fetch_before_push(0, std::nullopt)) << "pinned tasks run next";
  EXPECT_TRUE(core.fetch_before_push(0, order[0]));
  EXPECT_FALSE(core.fetch_before_push(0, order[2]));
  core.push(0, tasks[order[0]], order[0]);
  core.push(0, tasks[order[2]], order[2]);
  EXPECT_THAT(core.to_fetch(0), ::testing::IsEmpty()) << "the first is fetched, the third is not near";
  EXPECT_EQ(core.pop(0), tasks[order[0]]);
  EXPECT_THAT(core.to_fetch(0), ::testing::ElementsAre(tasks[order[2]])) << "now it is the second in line";
  EXPECT_THAT(core.to_fetch(0), ::testing::IsEmpty());
}

TEST(PolicyCore, GreedyFetchesWhatItWouldPick) {
  const Schedule schedule = one_f_one_b(2, 4).with(Discipline::greedy);
  const auto order = schedule.order(0);
  Tasks tasks(schedule.id_count());
  PolicyCore core(2, always);
  core.begin(schedule, two_workers);
  for (const std::size_t i : {3, 1, 2, 0}) {
    EXPECT_EQ(core.fetch_before_push(0, order[i]), i == 3 || i == 1) << "two were ready then";
    core.push(0, tasks[order[i]], order[i]);
  }
  EXPECT_THAT(core.to_fetch(0), ::testing::ElementsAre(tasks[order[0]]));
  EXPECT_EQ(core.pop(0), tasks[order[0]]);
  EXPECT_THAT(core.to_fetch(0), ::testing::IsEmpty()) << "the next was fetched when it was pushed";
}

// CanRun calls StarPU, and through it a function of the user: no lock of the core may be held then.
TEST(PolicyCore, WorkersOfStarPUMayHaveOtherNumbers) {
  const Schedule schedule = one_f_one_b(3, 2);
  Tasks tasks(schedule.id_count());
  PolicyCore core(4, always);
  // This rank has the schedule's workers 1 and 2, as workers 3 and 1.
  const std::array logical = {-1, 2, -1, 1};
  core.begin(schedule, logical);
  for (const auto& [worker, of_schedule] : {std::pair{1, 2}, std::pair{3, 1}}) {
    for (const JobId id : schedule.order(of_schedule)) core.push(worker, tasks[id], id);
    for (const JobId id : schedule.order(of_schedule)) {
      EXPECT_EQ(core.pop(worker), tasks[id]);
      core.finish(worker, id);
    }
  }
  EXPECT_EQ(core.pop(0), nullptr);
  EXPECT_NO_THROW(core.begin(schedule, logical)) << "all jobs of this rank have ended";
}

TEST(PolicyCore, ARunEndsBeforeTheNextBegins) {
  const Schedule schedule = one_f_one_b(1, 1);
  const Schedule other = one_f_one_b(1, 3).with(Discipline::greedy);
  Tasks tasks(other.id_count());
  const std::array logical = {0};
  PolicyCore core(1, always);
  core.begin(schedule, logical);
  EXPECT_THROW(core.begin(schedule, logical), std::logic_error) << "no job has run";
  for (const JobId id : schedule.order(0)) {
    core.push(0, tasks[id], id);
    ASSERT_EQ(core.pop(0), tasks[id]);
    EXPECT_THROW(core.begin(schedule, logical), std::logic_error) << "a popped job has not ended";
    core.finish(0, id);
  }
  core.begin(other, logical);
  const JobId last = other.order(0).back();
  core.push(0, tasks[last], last);
  EXPECT_EQ(core.pop(0), tasks[last]) << "the second schedule's discipline";
}

// Idle workers pop between runs, when the schedule of the last run may be destroyed. (The address sanitizer
// would tell.)
TEST(PolicyCore, NeedsNoScheduleAfterTheLastJob) {
  PolicyCore core(2, always);
  for (const Discipline discipline : {Discipline::ordered, Discipline::greedy, Discipline::bounded}) {
    // All jobs on worker 0, none on worker 1.
    const plan::ScheduleRequest request{.workers = 2, .microbatches = 2, .stage_workers = {0, 0}};
    const std::vector<int> limits =
        discipline == Discipline::bounded ? std::vector<int>{4, 4} : std::vector<int>{};
    auto schedule = std::make_unique<Schedule>(plan::make_schedule("1f1b", request).with(discipline, limits));
    Tasks tasks(schedule->id_count());
    core.begin(*schedule, two_workers);
    for (const JobId id : plan::topological_order(*schedule)) {
      core.push(0, tasks[id], id);
      ASSERT_EQ(core.pop(0), tasks[id]);
      core.finish(0, id);
    }
    schedule.reset();
    EXPECT_EQ(core.pop(0), nullptr);
    EXPECT_EQ(core.pop(1), nullptr);
  }
}

TEST(PolicyCore, ARunThatMayNotBeginChangesNothing) {
  const Schedule schedule = one_f_one_b(1, 2);
  const Schedule other = one_f_one_b(1, 1);  // too small for the jobs of the first
  Tasks tasks(schedule.id_count());
  const std::array logical = {0};
  PolicyCore core(1, always);
  core.begin(schedule, logical);
  EXPECT_THROW(core.begin(other, logical), std::logic_error);
  for (const JobId id : schedule.order(0)) {
    core.push(0, tasks[id], id);
    ASSERT_EQ(core.pop(0), tasks[id]);
    core.finish(0, id);
  }
}

TEST(PolicyCore, AJobOfAWorkerThatHasNone) {
  const Schedule schedule = one_f_one_b(1, 1);
  Tasks tasks(schedule.id_count());
  PolicyCore core(2, always);
  const JobId job = schedule.order(0).front();
  EXPECT_THROW(core.push(0, tasks[job], job), std::logic_error) << "no run has begun";
  core.begin(schedule, std::array{0, -1});
  EXPECT_THROW(core.push(1, tasks[job], job), std::logic_error);
  EXPECT_THROW((void)core.fetch_before_push(1, job), std::logic_error);
  EXPECT_THROW(core.finish(1, job), std::logic_error);
}

TEST(PolicyCore, AWorkerThatDoesNotExist) {
  Tasks tasks(1);
  PolicyCore core(2, always);
  EXPECT_THROW(core.push(2, tasks[0], std::nullopt), std::out_of_range);
}

}  // namespace
}  // namespace starpipe::sched
