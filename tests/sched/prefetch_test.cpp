// SPDX-License-Identifier: Apache-2.0
// On a worker with a memory of its own, inputs of the next jobs in line are fetched ahead. There may be no
// such worker here, so two functions of StarPU are replaced: one says that worker 1 has such a memory, the
// other notes what is asked for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <starpu.h>

#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "sched/starpu.hpp"
#include "starpipe/plan/registry.hpp"

namespace {

struct Fetch {
  void* job;
  unsigned worker;
  friend bool operator==(const Fetch&, const Fetch&) = default;
};

std::mutex mutex;
std::vector<Fetch> fetches;

std::vector<Fetch> fetched() {
  const std::scoped_lock lock(mutex);
  return fetches;
}

}  // namespace

extern "C" unsigned starpu_worker_get_memory_node(unsigned worker) { return worker == 1 ? 1 : 0; }

extern "C" int starpu_prefetch_task_input_for(starpu_task* task, unsigned worker) {
  const std::scoped_lock lock(mutex);
  fetches.push_back({task->cl_arg, worker});
  return 0;
}

namespace starpipe::sched {
namespace {

std::atomic<bool> may_end = false;

void wait_for_permission(void** /*buffers*/, void* /*argument*/) {
  while (!may_end) std::this_thread::sleep_for(std::chrono::microseconds(100));
}

TEST(Prefetch, TheNextJobsInLine) {
  const testing::StarPU starpu(2);
  starpu_codelet codelet;
  starpu_codelet_init(&codelet);
  codelet.cpu_funcs[0] = wait_for_permission;
  const plan::Schedule schedule = plan::make_schedule("ddp", {.workers = 2, .microbatches = 8});
  active_policy_core()->begin(schedule, std::vector{0, 1});
  std::vector<std::vector<Fetch>> jobs(2);  // by worker, in order
  for (int worker = 0; worker < 2; ++worker) {
    for (const plan::JobId id : schedule.order(worker)) {
      starpu_task* const task = starpu_task_create();
      task->cl = &codelet;
      task->cl_arg = reinterpret_cast<void*>(static_cast<std::uintptr_t>(id) + 1);  // a name, no more
      jobs[static_cast<std::size_t>(worker)].push_back({task->cl_arg, 1});
      task->sched_data = pack_sched_data(worker, id);
      ASSERT_EQ(starpu_task_submit(task), 0);
    }
  }
  const auto& line = jobs[1];
  const auto early = fetched();
  may_end = true;
  starpu_task_wait_for_all();
  EXPECT_GT(line.size(), 3U);
  // The first is running or about to, and blocks; two more are in line behind it at most.
  EXPECT_THAT(early, ::testing::SizeIs(::testing::AllOf(::testing::Ge(2U), ::testing::Le(3U))));
  EXPECT_THAT(fetched(), ::testing::ElementsAreArray(line)) << "each once, in order, and none of worker 0";
}

}  // namespace
}  // namespace starpipe::sched
