// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/simulate/worker_queue.hpp"

#include <array>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "starpipe/base/index.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "support/random_schedules.hpp"

namespace starpipe::plan {
namespace {

using ::testing::Optional;

/// `stages` on one worker, F before BW, by micro-batch within each.
Schedule on_one_worker(int stages, int microbatches, Discipline discipline, std::vector<int> limits = {}) {
  ScheduleSpec spec;
  spec.name = "test";
  spec.graph = StageGraph::chain(stages);
  spec.microbatches = microbatches;
  spec.placement = [](const Job&) { return Placement{}; };
  spec.priority = [](const Job& j) {
    return j.pass == Pass::F ? 10 * j.microbatch + j.stage : 1000 + 10 * j.microbatch - j.stage;
  };
  spec.discipline = discipline;
  spec.memory_limits = std::move(limits);
  return Schedule(spec);
}

JobId id(const Schedule& schedule, Job job) { return *schedule.find(job); }

TEST(WorkerQueue, OrderedWaitsForTheNextInLine) {
  const Schedule schedule = on_one_worker(1, 2, Discipline::ordered);
  const JobId f0 = id(schedule, {0, 0, Pass::F}), f1 = id(schedule, {0, 1, Pass::F});
  const JobId b0 = id(schedule, {0, 0, Pass::BW}), b1 = id(schedule, {0, 1, Pass::BW});
  WorkerQueue queue(schedule, 0);

  EXPECT_EQ(queue.unfinished(), 4U);
  EXPECT_EQ(queue.pop(), std::nullopt);
  queue.push(f1);
  EXPECT_EQ(queue.ready(), 1U);
  EXPECT_EQ(queue.pop(), std::nullopt) << "f0 is next";
  queue.push(f0);
  EXPECT_THAT(queue.pop(), Optional(f0));
  EXPECT_EQ(queue.live(), 1);
  EXPECT_THAT(queue.pop(), Optional(f1)) << "pop does not ask whether the worker is busy: the caller knows";
  EXPECT_EQ(queue.live(), 2);
  queue.finish(f0);
  queue.finish(f1);
  queue.push(b1);
  EXPECT_EQ(queue.pop(), std::nullopt);
  queue.push(b0);
  EXPECT_THAT(queue.pop(), Optional(b0));
  queue.finish(b0);
  EXPECT_EQ(queue.live(), 1);
  EXPECT_THAT(queue.pop(), Optional(b1));
  queue.finish(b1);
  EXPECT_EQ(queue.live(), 0);
  EXPECT_EQ(queue.unfinished(), 0U);
  EXPECT_EQ(queue.ready(), 0U);
  EXPECT_EQ(queue.pop(), std::nullopt);
}

TEST(WorkerQueue, GreedyTakesTheSmallestReady) {
  const Schedule schedule = on_one_worker(1, 3, Discipline::greedy);
  WorkerQueue queue(schedule, 0);

  queue.push(id(schedule, {0, 2, Pass::F}));
  queue.push(id(schedule, {0, 1, Pass::F}));
  EXPECT_THAT(queue.pop(), Optional(id(schedule, {0, 1, Pass::F})));
  queue.push(id(schedule, {0, 0, Pass::F}));
  EXPECT_THAT(queue.pop(), Optional(id(schedule, {0, 0, Pass::F})));
  EXPECT_THAT(queue.pop(), Optional(id(schedule, {0, 2, Pass::F})));
  EXPECT_EQ(queue.pop(), std::nullopt);
}

TEST(WorkerQueue, BoundedKeepsASlotForTheOldest) {
  const Schedule schedule = on_one_worker(1, 3, Discipline::bounded, {2});
  const JobId f0 = id(schedule, {0, 0, Pass::F}), f1 = id(schedule, {0, 1, Pass::F});
  const JobId f2 = id(schedule, {0, 2, Pass::F}), b1 = id(schedule, {0, 1, Pass::BW});
  WorkerQueue queue(schedule, 0);

  queue.push(f2);
  queue.push(f1);
  EXPECT_THAT(queue.pop(), Optional(f1)) << "one place is free for others than micro-batch 0";
  queue.finish(f1);
  EXPECT_EQ(queue.pop(), std::nullopt) << "the second is kept for micro-batch 0";
  EXPECT_EQ(queue.ready(), 1U);
  queue.push(f0);
  EXPECT_THAT(queue.pop(), Optional(f0));
  EXPECT_EQ(queue.live(), 2);
  queue.finish(f0);
  EXPECT_EQ(queue.pop(), std::nullopt);
  queue.push(b1);
  EXPECT_THAT(queue.pop(), Optional(b1)) << "a backward pass is never refused";
  EXPECT_EQ(queue.pop(), std::nullopt) << "its stash is live until it ends";
  queue.finish(b1);
  EXPECT_THAT(queue.pop(), Optional(f2));
  EXPECT_EQ(queue.live(), 2);
}

TEST(WorkerQueue, BoundedLetsTheOldestStartAllItsStages) {
  const Schedule schedule = on_one_worker(3, 2, Discipline::bounded, {3});
  WorkerQueue queue(schedule, 0);

  queue.push(id(schedule, {0, 1, Pass::F}));
  EXPECT_EQ(queue.pop(), std::nullopt) << "three stages per micro-batch: no place for a second one";
  for (int s = 0; s < 3; ++s) {
    queue.push(id(schedule, {s, 0, Pass::F}));
    EXPECT_THAT(queue.pop(), Optional(id(schedule, {s, 0, Pass::F})));
    queue.finish(id(schedule, {s, 0, Pass::F}));
  }
  EXPECT_EQ(queue.live(), 3);
  for (int s = 2; s >= 0; --s) {
    EXPECT_EQ(queue.pop(), std::nullopt) << "micro-batch 1 is not the oldest until all of 0 has ended";
    queue.push(id(schedule, {s, 0, Pass::BW}));
    EXPECT_THAT(queue.pop(), Optional(id(schedule, {s, 0, Pass::BW})));
    queue.finish(id(schedule, {s, 0, Pass::BW}));
  }
  EXPECT_THAT(queue.pop(), Optional(id(schedule, {0, 1, Pass::F})));
}

TEST(WorkerQueue, SplitBackwardHoldsTheStashUntilW) {
  ScheduleSpec spec;
  spec.split_backward = [](int, int) { return true; };
  spec.placement = [](const Job&) { return Placement{}; };
  spec.priority = [](const Job& j) { return static_cast<int>(j.pass); };
  const Schedule schedule(spec);
  WorkerQueue queue(schedule, 0);

  for (const Pass pass : {Pass::F, Pass::B, Pass::W}) {
    queue.push(id(schedule, {0, 0, pass}));
    ASSERT_THAT(queue.pop(), Optional(id(schedule, {0, 0, pass})));
    EXPECT_EQ(queue.live(), 1);
    queue.finish(id(schedule, {0, 0, pass}));
  }
  EXPECT_EQ(queue.live(), 0);
}

/// Split backward passes of `microbatches` on one worker, with recomputation, all B before all W.
Schedule recomputing(int microbatches, std::vector<int> limits) {
  ScheduleSpec spec;
  spec.microbatches = microbatches;
  spec.split_backward = [](int, int) { return true; };
  spec.placement = [](const Job&) { return Placement{}; };
  spec.priority = [](const Job& j) {
    constexpr std::array<int, pass_count> order = {0, 2, 3, 2, 1};  // F, R, B, W
    return 10 * order[index(j.pass)] + j.microbatch;
  };
  spec.discipline = Discipline::bounded;
  spec.memory_limits = std::move(limits);
  spec.home = [](int, int) { return Home::none; };
  return Schedule(spec);
}

TEST(WorkerQueue, RBeginsTheStash) {
  const Schedule schedule = recomputing(3, {2});
  ASSERT_EQ(check(schedule).problem, "");
  WorkerQueue queue(schedule, 0);
  for (int b = 0; b < 3; ++b) {
    queue.push(id(schedule, {0, b, Pass::F}));
    ASSERT_THAT(queue.pop(), Optional(id(schedule, {0, b, Pass::F}))) << "no forward pass is refused";
    queue.finish(id(schedule, {0, b, Pass::F}));
    queue.push(id(schedule, {0, b, Pass::R}));
  }
  EXPECT_EQ(queue.live(), 0);
  for (int b = 0; b < 2; ++b) {
    ASSERT_THAT(queue.pop(), Optional(id(schedule, {0, b, Pass::R})));
    queue.finish(id(schedule, {0, b, Pass::R}));
    EXPECT_EQ(queue.live(), b + 1);
  }
  for (int b = 0; b < 2; ++b) {
    queue.push(id(schedule, {0, b, Pass::B}));
    ASSERT_THAT(queue.pop(), Optional(id(schedule, {0, b, Pass::B})));
    queue.finish(id(schedule, {0, b, Pass::B}));
  }
  EXPECT_EQ(queue.pop(), std::nullopt) << "a third stash is above the limit";
  queue.push(id(schedule, {0, 1, Pass::W}));
  ASSERT_THAT(queue.pop(), Optional(id(schedule, {0, 1, Pass::W})));
  queue.finish(id(schedule, {0, 1, Pass::W}));
  EXPECT_THAT(queue.pop(), Optional(id(schedule, {0, 2, Pass::R})));
}

TEST(WorkerQueue, AWorkerWithoutJobsIsEmpty) {
  ScheduleSpec spec;
  spec.workers = 2;
  spec.placement = [](const Job&) { return Placement{}; };
  spec.priority = [](const Job&) { return 0; };
  for (const auto discipline : {Discipline::greedy, Discipline::bounded, Discipline::ordered}) {
    const Schedule schedule = Schedule(spec).with(
        discipline, discipline == Discipline::bounded ? std::vector{1, 1} : std::vector<int>{});
    WorkerQueue queue(schedule, 1);
    EXPECT_EQ(queue.unfinished(), 0U);
    EXPECT_EQ(queue.pop(), std::nullopt);
  }
}

/// One worker alone, jobs pushed in any order that keeps the dependencies and ended at any time: the
/// limit holds at every moment, the counters are right, jobs that are ready and near are ready, and every job
/// runs.
TEST(WorkerQueue, RandomTrafficKeepsTheCountsAndTheLimit) {
  testing::Random random(7);
  for (int round = 0; round < 2000; ++round) {
    testing::Options options;
    options.max_workers = 1;
    options.one_worker_a_stash = true;
    Schedule schedule(testing::random_spec(random, options));
    const auto discipline = static_cast<Discipline>(round % 3);
    schedule =
        schedule.with(discipline, discipline == Discipline::bounded ? testing::random_limits(random, schedule)
                                                                    : std::vector<int>{});
    if (!check(schedule).ok()) continue;

    WorkerQueue queue(schedule, 0);
    std::vector<int> waits(schedule.id_count());
    std::vector<JobId> pushable, running;
    std::set<JobId> waiting;  // pushed and not popped
    for (const JobId job : schedule.order()) {
      waits[job] = schedule.pred_count(job);
      if (waits[job] == 0) pushable.push_back(job);
    }
    std::size_t unfinished = schedule.job_count();
    int live = 0;
    std::optional<std::uint32_t> last_turn;
    while (unfinished > 0) {
      while (!pushable.empty() && (running.empty() || testing::chance(random, 0.6))) {
        std::swap(pushable[index(testing::between(random, 0, static_cast<int>(pushable.size()) - 1))],
                  pushable.back());
        queue.push(pushable.back());
        waiting.insert(pushable.back());
        pushable.pop_back();
      }
      if (running.empty() || testing::chance(random, 0.3)) {
        if (const auto job = queue.pop()) {
          waiting.erase(*job);
          running.push_back(*job);
          const Job started = schedule.job(*job);
          live += *job == schedule.stash_maker(started.stage, started.microbatch) ? 1 : 0;
          if (discipline == Discipline::ordered) {
            EXPECT_EQ(schedule.turn(*job), last_turn ? *last_turn + 1 : 0);
            last_turn = schedule.turn(*job);
          }
        } else {
          ASSERT_FALSE(running.empty()) << "nothing runs, everything free was pushed, and nothing may start";
        }
      }
      if (!running.empty() && testing::chance(random, 0.5)) {
        const JobId job = running.back();
        running.pop_back();
        queue.finish(job);
        --unfinished;
        const Pass pass = schedule.job(job).pass;
        live -= pass == Pass::W || pass == Pass::BW ? 1 : 0;
        schedule.for_each_succ(job, [&](JobId next) {
          if (--waits[next] == 0) pushable.push_back(next);
        });
      }
      ASSERT_EQ(queue.ready(), waiting.size());
      for (const JobId job : queue.ready_and_near(2)) {
        ASSERT_TRUE(waiting.contains(job)) << to_string(schedule.job(job)) << " was started before";
      }
      ASSERT_EQ(queue.unfinished(), unfinished);
      ASSERT_EQ(queue.live(), live);
      if (discipline == Discipline::bounded) {
        ASSERT_LE(live, schedule.memory_limits()[0]);
      }
    }
  }
}

}  // namespace
}  // namespace starpipe::plan
