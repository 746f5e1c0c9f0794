// SPDX-License-Identifier: Apache-2.0
// The policy without StarPU: tasks without a job, which are pinned to a worker or free, and who is woken for
// them.
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <set>
#include <thread>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sched/opaque_tasks.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/sched/policy_core.hpp"

namespace starpipe::sched {
namespace {

using plan::JobId;
using plan::Schedule;

using namespace testing;

TEST(PolicyCore, PinnedThenJobsThenFree) {
  const Schedule schedule = one_f_one_b(2, 2);
  Tasks tasks(schedule.id_count() + 6);
  const std::size_t others = schedule.id_count();
  PolicyCore core(2, always);
  core.begin(schedule, two_workers);
  const JobId first = schedule.order(0)[0];
  for (const auto& [i, priority] : {std::pair{0, 1}, std::pair{1, 5}, std::pair{2, 5}}) {
    EXPECT_EQ(core.push_free(tasks[others + index(i)], priority), std::nullopt) << "no worker is idle";
  }
  core.push(0, tasks[first], first);
  core.push(0, tasks[others + 3], std::nullopt);
  core.push(0, tasks[others + 4], std::nullopt);
  EXPECT_EQ(core.pop(0), tasks[others + 3]) << "pinned tasks in order of arrival";
  EXPECT_EQ(core.pop(0), tasks[others + 4]);
  EXPECT_EQ(core.pop(0), tasks[first]);
  EXPECT_EQ(core.pop(0), tasks[others + 1]) << "free tasks, large priorities first";
  core.push(0, tasks[others + 5], std::nullopt);
  EXPECT_EQ(core.pop(0), tasks[others + 5]);
  EXPECT_EQ(core.pop(1), tasks[others + 2]) << "any worker may take a free task";
  EXPECT_EQ(core.pop(1), tasks[others + 0]);
  EXPECT_EQ(core.pop(0), nullptr);
  EXPECT_EQ(core.pop(1), nullptr);
}

std::set<PolicyCore::Task> on_their_way;  // tasks whose inputs are on their way

TEST(PolicyCore, APinnedTaskThatWaitsForItsInputsKeepsNoJobWaiting) {
  const Schedule schedule = one_f_one_b(1, 2);
  const std::size_t others = schedule.id_count();
  Tasks tasks(others + 3);
  PolicyCore core(1, always, [](PolicyCore::Task task, int) { return on_their_way.contains(task); });
  on_their_way = {tasks[others], tasks[others + 1]};
  core.begin(schedule, std::array{0});
  const auto order = schedule.order(0);
  core.push(0, tasks[others], std::nullopt);
  core.push(0, tasks[others + 1], std::nullopt);
  core.push(0, tasks[others + 2], std::nullopt);
  core.push(0, tasks[order[0]], order[0]);
  core.push(0, tasks[order[1]], order[1]);
  EXPECT_EQ(core.pop(0), tasks[others + 2]) << "its inputs are there";
  EXPECT_EQ(core.pop(0), tasks[order[0]]);
  core.finish(0, order[0]);
  on_their_way.erase(tasks[others + 1]);
  EXPECT_EQ(core.pop(0), tasks[others + 1]) << "its inputs have arrived";
  EXPECT_EQ(core.pop(0), tasks[order[1]]);
  core.finish(0, order[1]);
  EXPECT_EQ(core.pop(0), nullptr) << "jobs are to come, which would wait for its inputs, too";
  for (std::size_t i = 2; i < order.size(); ++i) {
    core.push(0, tasks[order[i]], order[i]);
    EXPECT_EQ(core.pop(0), tasks[order[i]]);
    core.finish(0, order[i]);
  }
  EXPECT_EQ(core.pop(0), tasks[others]) << "there are no more jobs";
  EXPECT_EQ(core.pop(0), nullptr);
  on_their_way = {tasks[others], tasks[others + 1]};
  core.push(0, tasks[others], std::nullopt);
  core.push(0, tasks[others + 1], std::nullopt);
  EXPECT_EQ(core.pop(0), nullptr) << "which of the two comes first?";
  on_their_way.erase(tasks[others + 1]);
  EXPECT_EQ(core.pop(0), tasks[others + 1]);
  EXPECT_EQ(core.pop(0), tasks[others]) << "nothing else waits";
}

TEST(PolicyCore, JobsThenPinnedTasksWithAnN) {
  const Schedule schedule = one_f_one_b(2, 2);
  constexpr std::array<std::int64_t, 6> ns = {
      5, -3, PolicyCore::no_n, std::numeric_limits<std::int64_t>::max(), 5, PolicyCore::no_n};
  Tasks tasks(schedule.id_count() + ns.size());
  const auto pinned = [&](std::size_t i) { return tasks[schedule.id_count() + i]; };
  PolicyCore core(2, always);
  core.begin(schedule, two_workers);
  const JobId first = schedule.order(0)[0];
  core.push(0, tasks[first], first);
  for (std::size_t i = 0; i < ns.size(); ++i) core.push(0, pinned(i), std::nullopt, ns[i]);
  EXPECT_EQ(core.pop(1), nullptr) << "another worker's";
  for (const std::size_t i : {2, 5}) EXPECT_EQ(core.pop(0), pinned(i)) << i;
  EXPECT_EQ(core.pop(0), tasks[first]);
  const JobId second = schedule.order(0)[1];
  for (const std::size_t i : {1, 0}) EXPECT_EQ(core.pop(0), pinned(i)) << i << ": no job is ready";
  core.push(0, tasks[second], second);
  core.finish(0, first);
  EXPECT_EQ(core.pop(0), tasks[second]);
  for (const std::size_t i : {4, 3}) EXPECT_EQ(core.pop(0), pinned(i)) << i;
}

TEST(PolicyCore, PinnedTasksByNAndArrival) {
  std::mt19937_64 random(3);
  constexpr std::size_t count = 3000;
  Tasks tasks(count);
  PolicyCore core(1, always);
  std::set<std::pair<std::int64_t, std::size_t>> queued;  // n and position of arrival: the next is the first
  for (std::size_t pushed = 0; pushed < count || !queued.empty();) {
    if (pushed < count && (queued.empty() || random() % 8 < 5)) {
      const auto n =
          static_cast<std::int64_t>(random() % 100) * (std::int64_t{1} << 56) - (std::int64_t{1} << 62);
      core.push(0, tasks[pushed], std::nullopt, n);
      queued.emplace(n, pushed++);
    } else {
      ASSERT_EQ(core.pop(0), tasks[queued.begin()->second]);
      queued.erase(queued.begin());
    }
  }
  EXPECT_EQ(core.pop(0), nullptr);
}

TEST(PolicyCore, InputsOfTheNextPinnedTaskAreFetchedOnce) {
  Tasks tasks(3);
  PolicyCore core(1, always);
  for (const auto& [i, n] : {std::pair{0, 7}, std::pair{1, 3}, std::pair{2, 5}}) {
    EXPECT_FALSE(core.fetch_before_push(0, std::nullopt, n)) << "thousands may be pushed at once";
    core.push(0, tasks[index(i)], std::nullopt, n);
  }
  EXPECT_EQ(core.pop(0), tasks[1]);
  EXPECT_THAT(core.to_fetch(0), ::testing::ElementsAre(tasks[2]));
  EXPECT_THAT(core.to_fetch(0), ::testing::IsEmpty());
  core.push(0, tasks[1], std::nullopt);
  EXPECT_THAT(core.to_fetch(0), ::testing::IsEmpty()) << "without an n, fetched when pushed";
  EXPECT_EQ(core.pop(0), tasks[1]);
  EXPECT_EQ(core.pop(0), tasks[2]);
  EXPECT_THAT(core.to_fetch(0), ::testing::ElementsAre(tasks[0]));
  EXPECT_EQ(core.pop(0), tasks[0]);
  EXPECT_THAT(core.to_fetch(0), ::testing::IsEmpty());
}

TEST(PolicyCore, PinnedAndFreeTasksNeedNoSchedule) {
  Tasks tasks(2);
  PolicyCore core(1, always);
  EXPECT_EQ(core.pop(0), nullptr);
  core.push(0, tasks[0], std::nullopt);
  EXPECT_EQ(core.push_free(tasks[1], 0), 0) << "worker 0 is idle";
  EXPECT_EQ(core.pop(0), tasks[0]);
  EXPECT_EQ(core.pop(0), tasks[1]);
}

TEST(PolicyCore, APushAsksForAWakeUpUnlessTheWorkerWaits) {
  Tasks tasks(2);
  PolicyCore core(1, always);
  EXPECT_TRUE(core.push(0, tasks[0], std::nullopt)) << "the policy does not know whether the worker sleeps";
  EXPECT_EQ(core.pop(0), tasks[0]);
  EXPECT_EQ(core.pop(0), nullptr);
  std::atomic<bool> done = false;
  std::jthread worker([&] {
    for (;;) {
      while (core.pop(0) != nullptr) {
      }
      if (done) return;
      core.wait(0, std::chrono::minutes(1));
    }
  });
  while (core.push(0, tasks[1], std::nullopt)) std::this_thread::yield();  // until it waits
  done = true;
  core.push(0, tasks[1], std::nullopt);
}

TEST(PolicyCore, ARefusedJobDoesNotHoldBackFreeTasks) {
  const Schedule schedule = one_f_one_b(2, 2);
  Tasks tasks(schedule.id_count() + 1);
  PolicyCore core(2, always);
  core.begin(schedule, two_workers);
  const JobId second = schedule.order(0)[1];
  core.push(0, tasks[second], second);
  EXPECT_EQ(core.push_free(tasks[schedule.id_count()], 0), std::nullopt);
  EXPECT_EQ(core.pop(0), tasks[schedule.id_count()]);
  EXPECT_EQ(core.pop(0), nullptr);
}

TEST(PolicyCore, FreeTasksGoToWorkersThatCanRunThem) {
  Tasks tasks(2);
  PolicyCore core(2, [](PolicyCore::Task, int worker) { return worker == 1; });
  EXPECT_EQ(core.push_free(tasks[0], 0), std::nullopt);
  EXPECT_EQ(core.pop(0), nullptr);
  EXPECT_EQ(core.push_free(tasks[1], 9), std::nullopt) << "worker 0 is idle, but cannot run it";
  EXPECT_EQ(core.pop(1), tasks[1]);
  EXPECT_EQ(core.pop(1), tasks[0]);
}

TEST(PolicyCore, AsksWhoCanRunAFreeTaskWithoutALock) {
  Tasks tasks(3);
  static PolicyCore* asked = nullptr;
  static int questions = 0;
  PolicyCore core(2, [](PolicyCore::Task, int worker) {
    ++questions;
    (void)asked->start(worker);  // with the lock held, these calls would never return
    (void)asked->pop(worker);
    return true;
  });
  asked = &core;
  EXPECT_EQ(core.pop(0), nullptr);
  EXPECT_EQ(core.push_free(tasks[0], 0), 1);
  EXPECT_EQ(questions, 2) << "once for each worker";
  EXPECT_EQ(core.pop(0), tasks[0]);
  EXPECT_EQ(core.start(0), std::nullopt);
  EXPECT_EQ(questions, 2);
}

TEST(PolicyCore, AFreeTaskWakesOneIdleWorker) {
  Tasks tasks(4);
  PolicyCore core(3, always);
  for (int w = 0; w < 3; ++w) EXPECT_EQ(core.pop(w), nullptr);
  EXPECT_EQ(core.pop(1), nullptr) << "asking twice is being idle once";
  std::set<int> woken;
  for (std::size_t i = 0; i < 3; ++i) woken.insert(core.push_free(tasks[i], 0).value());
  EXPECT_EQ(woken, (std::set{0, 1, 2})) << "each once";
  EXPECT_EQ(core.push_free(tasks[3], 0), std::nullopt) << "all workers were woken";
  for (int w = 0; w < 3; ++w) {
    EXPECT_NE(core.pop(w), nullptr);
    EXPECT_EQ(core.start(w), std::nullopt) << "no worker is idle";
  }
  EXPECT_NE(core.pop(0), nullptr) << "the fourth task needs no wake-up";
}

TEST(PolicyCore, AWorkerThatStartsSomethingElseWakesAnotherInItsPlace) {
  Tasks tasks(3);
  PolicyCore core(3, [](PolicyCore::Task, int worker) { return worker != 0; });
  for (const int w : {0, 1, 2}) EXPECT_EQ(core.pop(w), nullptr);
  EXPECT_EQ(core.push_free(tasks[0], 0), 2);
  core.push(2, tasks[1], std::nullopt);
  EXPECT_EQ(core.pop(2), tasks[1]) << "pinned tasks first";
  EXPECT_EQ(core.start(2), 1) << "worker 0 is idle too, but cannot run the free task";
  EXPECT_EQ(core.start(2), std::nullopt) << "once";
  EXPECT_EQ(core.pop(1), tasks[0]);
  EXPECT_EQ(core.start(1), std::nullopt);
}

TEST(PolicyCore, AWorkerWithATaskFromElsewhereIsNotWoken) {
  Tasks tasks(1);
  PolicyCore core(2, always);
  for (const int w : {0, 1}) EXPECT_EQ(core.pop(w), nullptr);
  EXPECT_EQ(core.start(1), std::nullopt) << "StarPU gave the worker a task that the policy did not see";
  EXPECT_EQ(core.push_free(tasks[0], 0), 0);
}

TEST(PolicyCore, WaitEndsWhenAFreeTaskIsTheWorkersToTake) {
  Tasks tasks(2);
  PolicyCore core(2, always);
  for (const int w : {0, 1}) EXPECT_EQ(core.pop(w), nullptr);
  const int first = core.push_free(tasks[0], 0).value();
  EXPECT_TRUE(core.wait(first, std::chrono::minutes(1)));  // pushed before it waits: must not sleep
  const int second = core.push_free(tasks[1], 0).value();
  EXPECT_NE(first, second);
  EXPECT_TRUE(core.wait(second, std::chrono::minutes(1)));
  EXPECT_NE(core.pop(second), nullptr);
}

TEST(PolicyCore, SaysThatAWorkerIsIdle) {
  static int idle = 0;
  PolicyCore core(1, always);
  EXPECT_FALSE(core.wait(0, std::chrono::microseconds(1)));
  core.call_when_idle([] { ++idle; });
  EXPECT_FALSE(core.wait(0, std::chrono::microseconds(1)));
  EXPECT_EQ(idle, 1);
}

}  // namespace
}  // namespace starpipe::sched
