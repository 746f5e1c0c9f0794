// SPDX-License-Identifier: Apache-2.0
// Jobs of a schedule and other tasks in one StarPU context. Jobs keep their schedule's order, pinned tasks
// run on their worker, and free tasks run on any.
#include <array>
#include <atomic>
#include <cstdint>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <starpu.h>

#include "sched/starpu.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/schedule/check.hpp"

namespace starpipe::sched {
namespace {

using testing::StarPU;

constexpr int workers = 3;

struct Ran {
  std::atomic<int> times = 0;
  std::atomic<int> worker = -1;
  std::atomic<int> order = -1;  // position of the task's start among all tasks of the process
};

std::atomic<int> counter = 0;

void note(void** /*buffers*/, void* argument) {
  Ran& ran = *static_cast<Ran*>(argument);
  ran.order = counter++;
  ran.worker = starpu_worker_get_id();
  ++ran.times;
}

starpu_codelet& codelet() {
  static starpu_codelet only = [] {
    starpu_codelet result;
    starpu_codelet_init(&result);
    result.cpu_funcs[0] = note;
    result.name = "note";
    return result;
  }();
  return only;
}

starpu_task* task_for(Ran& ran) {
  starpu_task* const task = starpu_task_create();
  task->cl = &codelet();
  task->cl_arg = &ran;
  return task;
}

class Mixed : public ::testing::TestWithParam<plan::Discipline> {
 protected:
  // Jobs; StarPU's tags have the schedule's dependencies.
  void submit(const plan::Schedule& schedule, std::vector<Ran>& ran, int step) {
    const auto tag = [&](plan::JobId id) {
      return static_cast<starpu_tag_t>(step) * schedule.id_count() + id + 1;
    };
    for (const plan::JobId id : plan::topological_order(schedule)) {
      starpu_task* const task = task_for(ran[id]);
      task->use_tag = 1;
      task->tag_id = tag(id);
      task->sched_data = pack_sched_data(schedule.compute(id), id);
      std::vector<starpu_tag_t> needed;
      schedule.for_each_pred(id, [&](plan::JobId before) { needed.push_back(tag(before)); });
      if (!needed.empty()) {
        starpu_tag_declare_deps_array(task->tag_id, static_cast<unsigned>(needed.size()), needed.data());
      }
      ASSERT_EQ(starpu_task_submit(task), 0);
    }
  }

  // Other tasks: free, pinned by `pack_sched_data`, and pinned by StarPU itself (which the policy never
  // sees).
  static void submit_others(std::vector<Ran>& ran) {
    for (std::size_t i = 0; i < ran.size(); ++i) {
      starpu_task* const task = task_for(ran[i]);
      const auto worker = static_cast<int>(i / 3) % workers;
      if (i % 3 == 0) task->priority = static_cast<int>(i % 11) - 5;
      if (i % 3 == 1) task->sched_data = pack_sched_data(worker, std::nullopt);
      if (i % 3 == 2) {
        task->execute_on_a_specific_worker = 1;
        task->workerid = static_cast<unsigned>(worker);
      }
      ASSERT_EQ(starpu_task_submit(task), 0);
    }
  }
};

TEST_P(Mixed, JobsPinnedAndFreeTasks) {
  const StarPU starpu(workers);
  const plan::Schedule base = plan::make_schedule("1f1b", {.workers = workers, .microbatches = 40});
  const plan::Schedule schedule = GetParam() == plan::Discipline::bounded
                                      ? base.with(GetParam(), std::vector<int>(workers, 2))
                                      : base.with(GetParam());
  std::array<int, workers> logical{};
  std::iota(logical.begin(), logical.end(), 0);
  for (int step = 0; step < 5; ++step) {
    std::vector<Ran> jobs(schedule.id_count());
    std::vector<Ran> others(600);
    active_policy_core()->begin(schedule, logical);
    {
      const std::jthread somebody([&] { submit_others(others); });
      submit(schedule, jobs, step);
    }
    starpu_task_wait_for_all();
    for (const plan::JobId id : schedule.order()) {
      EXPECT_EQ(jobs[id].times, 1);
      EXPECT_EQ(jobs[id].worker, schedule.compute(id));
    }
    for (std::size_t i = 0; i < others.size(); ++i) {
      EXPECT_EQ(others[i].times, 1) << i;
      if (i % 3 == 0) continue;
      EXPECT_EQ(others[i].worker, static_cast<int>(i / 3) % workers) << i;
    }
    if (GetParam() != plan::Discipline::ordered) continue;
    for (int w = 0; w < workers; ++w) {
      const auto order = schedule.order(w);
      for (std::size_t i = 1; i < order.size(); ++i)
        EXPECT_LT(jobs[order[i - 1]].order, jobs[order[i]].order);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Mixed,
                         ::testing::Values(plan::Discipline::ordered, plan::Discipline::greedy,
                                           plan::Discipline::bounded),
                         [](const auto& test) { return std::string(plan::to_string(test.param)); });

// Tasks run sequentially, and workers sleep in between: each task must wake a worker.
TEST(FreeTasks, AChainThatSleepsBetweenItsLinks) {
  const StarPU starpu(workers);
  std::vector<Ran> ran(100);
  for (Ran& each : ran) {
    starpu_task* const task = task_for(each);
    task->synchronous = 1;
    ASSERT_EQ(starpu_task_submit(task), 0);
    ASSERT_EQ(each.times, 1);
  }
}

/// A task that runs before all others and occupies the only worker until the end of its lifetime.
class Held {
 public:
  Held() {
    open_ = false;
    static starpu_codelet hold = [] {
      starpu_codelet result;
      starpu_codelet_init(&result);
      result.cpu_funcs[0] = [](void**, void*) { open_.wait(false); };
      return result;
    }();
    starpu_task* const task = starpu_task_create();
    task->cl = &hold;
    task->sched_data = pack_sched_data(0, std::nullopt);
    EXPECT_EQ(starpu_task_submit(task), 0);
  }
  ~Held() {
    open_ = true;
    open_.notify_all();
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

 private:
  static inline std::atomic<bool> open_;
};

TEST(FreeTasks, LargePrioritiesFirst) {
  const StarPU starpu(1);
  std::vector<Ran> ran(200);
  std::optional<Held> held(std::in_place);
  for (std::size_t i = 0; i < ran.size(); ++i) {
    starpu_task* const task = task_for(ran[i]);
    task->priority = static_cast<int>(i % 50) - 20;
    ASSERT_EQ(starpu_task_submit(task), 0);
  }
  held.reset();
  starpu_task_wait_for_all();
  const auto rank = [](std::size_t i) { return std::pair{-(static_cast<int>(i % 50)), i}; };
  for (std::size_t i = 0; i < ran.size(); ++i) {
    for (std::size_t j = 0; j < ran.size(); ++j) {
      ASSERT_EQ(rank(i) < rank(j), ran[i].order < ran[j].order) << i << ", " << j;
    }
  }
}

TEST(PinnedTasks, SmallestNFirst) {
  const StarPU starpu(1);
  const std::array<std::int64_t, 10> ns = {
      3, -1, largest_n, 0, smallest_n, 3, -1, 1 - largest_n, largest_n - 1, 3};
  std::vector<Ran> ran(ns.size());
  std::optional<Held> held(std::in_place);
  for (std::size_t i = 0; i < ran.size(); ++i) {
    starpu_task* const task = task_for(ran[i]);
    task->sched_data = pack_pinned(0, ns[i]);
    ASSERT_EQ(starpu_task_submit(task), 0);
  }
  held.reset();
  starpu_task_wait_for_all();
  for (std::size_t i = 0; i < ran.size(); ++i) {
    for (std::size_t j = 0; j < ran.size(); ++j) {
      EXPECT_EQ(std::pair(ns[i], i) < std::pair(ns[j], j), ran[i].order < ran[j].order) << i << ", " << j;
    }
  }
}

TEST(PinnedTasks, WhatDoesNotFitIsRefused) {
  EXPECT_THROW(pack_pinned(0, largest_n + 1), std::out_of_range);
  EXPECT_THROW(pack_pinned(0, smallest_n - 1), std::out_of_range);
  for (const int worker : {-1, largest_worker + 1}) {
    EXPECT_THROW(pack_pinned(worker, 0), std::out_of_range);
    EXPECT_THROW(pack_sched_data(worker, std::nullopt), std::out_of_range);
  }
}

// Runs a task on a StarPU of its own with one worker.
void run_alone(void* sched_data) {
  const StarPU starpu(1);
  Ran ran;
  starpu_task* const task = task_for(ran);
  task->name = "lost";
  task->sched_data = sched_data;
  (void)starpu_task_submit(task);
  starpu_task_wait_for_all();
}

TEST(PinnedTasksDeathTest, AWorkerThatDoesNotExist) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(run_alone(pack_pinned(largest_worker, 0)), "task lost names worker 8191 of 1");
}

TEST(RequiredPolicy, NeedsStarPU) { EXPECT_THROW(require_active_policy(), std::logic_error); }

TEST(RequiredPolicy, IsTheCoreThatRuns) {
  const StarPU starpu(1);
  EXPECT_EQ(&require_active_policy(), active_policy_core());
}

// An exception would leave StarPU's locks held: the next call would wait for them indefinitely.
TEST(JobsDeathTest, NoExceptionLeavesThroughStarPU) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto run_a_job_of_no_schedule = [] {
    try {
      run_alone(pack_sched_data(0, plan::JobId{3}));
    } catch (const std::logic_error&) {
      _exit(0);
    }
  };
  EXPECT_DEATH(run_a_job_of_no_schedule(),
               "starpipe: the scheduling policy: a job of a worker that has none in this run");
}

}  // namespace
}  // namespace starpipe::sched
