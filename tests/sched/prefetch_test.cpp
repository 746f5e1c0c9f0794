// SPDX-License-Identifier: Apache-2.0
// For a worker with memory of its own, the policy fetches the inputs of the next jobs in line ahead. The test
// replaces two functions of StarPU, because the machine may have no such worker: one says that worker 1 has
// memory of its own, the other records the fetches.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <starpu.h>

#include "sched/starpu.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/registry/registry.hpp"

namespace {

struct Fetch {
  void* job;
  unsigned worker;
  friend bool operator==(const Fetch&, const Fetch&) = default;
};

std::mutex mutex;
std::vector<Fetch> fetches;
std::set<starpu_data_handle_t> fetched_data;

std::vector<Fetch> fetched() {
  const std::scoped_lock lock(mutex);
  return fetches;
}

}  // namespace

extern "C" unsigned starpu_worker_get_memory_node(unsigned worker) { return worker == 1 ? 1 : 0; }

extern "C" int starpu_prefetch_task_input_for(starpu_task* task, unsigned worker) {
  const std::scoped_lock lock(mutex);
  fetches.push_back({task->cl_arg, worker});
  for (unsigned i = 0; i < static_cast<unsigned>(STARPU_TASK_GET_NBUFFERS(task)); ++i) {
    if ((STARPU_TASK_GET_MODE(task, i) & (STARPU_SCRATCH | STARPU_REDUX)) == 0)  // as StarPU does
      fetched_data.insert(STARPU_TASK_GET_HANDLE(task, i));
  }
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
  std::vector<std::vector<Fetch>> jobs(2);  // [worker], in order
  for (int worker = 0; worker < 2; ++worker) {
    for (const plan::JobId id : schedule.order(worker)) {
      starpu_task* const task = starpu_task_create();
      task->cl = &codelet;
      task->cl_arg = reinterpret_cast<void*>(static_cast<std::uintptr_t>(id) + 1);  // only a name
      jobs[index(worker)].push_back({task->cl_arg, 1});
      task->sched_data = pack_sched_data(worker, id);
      ASSERT_EQ(starpu_task_submit(task), 0);
    }
  }
  const auto& line = jobs[1];
  const auto early = fetched();
  may_end = true;
  starpu_task_wait_for_all();
  EXPECT_GT(line.size(), 3U);
  // The first job is running, or about to, and blocks; at most two more are in line behind it.
  EXPECT_THAT(early, ::testing::SizeIs(::testing::AllOf(::testing::Ge(2U), ::testing::Le(3U))));
  EXPECT_THAT(fetched(), ::testing::ElementsAreArray(line)) << "each once, in order, and none of worker 0";
}

void add(void** buffers, void* /*argument*/) {
  const auto number = [&](int i) -> int& {
    return *reinterpret_cast<int*>(STARPU_VARIABLE_GET_PTR(buffers[i]));
  };
  number(1) = number(0) + 1;
  number(2) += number(1);
}

TEST(Prefetch, OnlyWhatIsRead) {
  const testing::StarPU starpu(2);
  fetched_data.clear();
  const std::array modes = {STARPU_R, STARPU_W, STARPU_RW, STARPU_SCRATCH};
  for (const bool variable : {false, true}) {
    starpu_codelet codelet;
    starpu_codelet_init(&codelet);
    codelet.cpu_funcs[0] = add;
    codelet.nbuffers = variable ? STARPU_VARIABLE_NBUFFERS : static_cast<int>(modes.size());
    codelet.specific_nodes = 1;  // the memory node of the CPU that really runs it
    std::fill_n(codelet.nodes, modes.size(), STARPU_SPECIFIC_NODE_CPU);
    std::array numbers = {1, 10, 100, 1000};
    std::array<starpu_data_handle_t, 4> data{};
    starpu_task* const task = starpu_task_create();
    task->cl = &codelet;
    task->nbuffers = static_cast<int>(modes.size());
    for (std::size_t i = 0; i < modes.size(); ++i) {
      starpu_variable_data_register(&data[i], i == 3 ? -1 : STARPU_MAIN_RAM,
                                    reinterpret_cast<std::uintptr_t>(&numbers[i]), sizeof(int));
      task->handles[i] = data[i];
      (variable ? task->modes : codelet.modes)[i] = modes[i];
    }
    task->sched_data = pack_sched_data(1, std::nullopt);
    ASSERT_EQ(starpu_task_submit(task), 0);
    starpu_task_wait_for_all();
    for (const starpu_data_handle_t handle : data) starpu_data_unregister(handle);
    EXPECT_THAT(numbers, ::testing::ElementsAre(1, 2, 102, 1000)) << "the task has its modes";
    EXPECT_THAT(fetched_data, ::testing::UnorderedElementsAre(data[0], data[2]));
    fetched_data.clear();
  }
}

}  // namespace
}  // namespace starpipe::sched
