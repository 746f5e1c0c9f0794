// SPDX-License-Identifier: Apache-2.0
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "plan/simulate/reductions.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/simulate.hpp"
#include "support/random_schedules.hpp"

namespace starpipe::plan {
namespace {

/// The forward passes of a worker in the order of n, as jobs of one round.
std::vector<Job> forward_jobs(const Schedule& schedule, int worker, int round, int of_round) {
  std::vector<Job> jobs;
  for (const JobId id : schedule.order(worker)) {
    Job job = schedule.job(id);
    if (job.pass != Pass::F || job.microbatch / of_round != round) continue;
    job.microbatch %= of_round;
    jobs.push_back(job);
  }
  return jobs;
}

/// Has the jobs, w and n of the schedule, round after round, and finishes.
void expect_forward(const Schedule& schedule, int microbatches) {
  const Schedule forward = forward_passes(schedule, microbatches);
  const int of_round = schedule.microbatches();
  EXPECT_TRUE(forward.forward_only());
  EXPECT_EQ(forward.microbatches(), microbatches);
  EXPECT_EQ(check(forward).problem, "");
  ASSERT_EQ(forward.job_count(), index(microbatches) * index(schedule.stages()));
  for (const JobId id : forward.order()) {
    const Job job = forward.job(id);
    ASSERT_EQ(job.pass, Pass::F);
    EXPECT_EQ(forward.find(job), id);
    const Placement at = schedule.placement(schedule.forward(job.stage, job.microbatch % of_round));
    EXPECT_EQ(forward.placement(id).compute, at.compute);
    EXPECT_EQ(forward.placement(id).weights, at.weights);
  }
  for (int s = 0; s < schedule.stages(); ++s) {
    EXPECT_TRUE(gradient_workers(forward, s).empty());
    EXPECT_TRUE(reduction_plan(forward, s, 100).empty());
  }
  const Timeline timeline = simulate(forward, {});
  for (const int stashes : timeline.peak_stashes) EXPECT_EQ(stashes, 0);
  if (schedule.discipline() != Discipline::ordered) return;
  for (int w = 0; w < schedule.workers(); ++w) {
    for (int round = 0; round < microbatches / of_round; ++round) {
      EXPECT_EQ(forward_jobs(forward, w, round, of_round), forward_jobs(schedule, w, 0, of_round));
    }
  }
}

TEST(ForwardPasses, OfEveryNamedSchedule) {
  for (const ScheduleEntry& entry : schedule_entries()) {
    SCOPED_TRACE(entry.name);
    ScheduleRequest request{.workers = 4, .microbatches = 8};
    std::optional<Schedule> made;
    for (const std::optional<int> groups : {std::optional<int>(), std::optional(2)}) {
      request.groups = groups;
      try {
        made.emplace(make_schedule(entry.name, request));
        break;
      } catch (const InputError&) {
        continue;
      }
    }
    ASSERT_TRUE(made);
    for (const int microbatches : {1, 7, 8, 19}) expect_forward(*made, microbatches);
    expect_forward(made->with_recomputation(), 5);
  }
}

TEST(ForwardPasses, OfRandomSchedules) {
  testing::Random random(1);
  for (int i = 0; i < 200; ++i) {
    const Schedule schedule = Schedule(testing::random_spec(random));
    if (!check(schedule).ok()) continue;
    expect_forward(schedule, testing::between(random, 1, 3 * schedule.microbatches()));
  }
}

TEST(ForwardPasses, NeedAMicrobatch) {
  const Schedule schedule = make_schedule("1f1b", {.workers = 2, .microbatches = 4});
  EXPECT_THROW(forward_passes(schedule, 0), InputError);
}

// Nothing is stashed, so there is nothing to limit.
TEST(ForwardPasses, OfABoundedScheduleAreGreedy) {
  const Schedule schedule = make_schedule("1f1b", {.workers = 2, .microbatches = 4});
  const Schedule bounded = schedule.with(Discipline::bounded, {1, 1});
  EXPECT_EQ(forward_passes(bounded, 3).discipline(), Discipline::greedy);
  expect_forward(bounded, 9);
  EXPECT_EQ(forward_passes(schedule, 3).discipline(), Discipline::ordered);
}

}  // namespace
}  // namespace starpipe::plan
