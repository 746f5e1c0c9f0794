// SPDX-License-Identifier: Apache-2.0
// Meters that many threads call at once; they are read meanwhile. The thread sanitizer looks for races.
#include "runtime/engine/meter.hpp"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/session/gpu_memory.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "support/networks.hpp"

namespace starpipe::runtime {
namespace {

constexpr int workers = 8;

struct Run {
  model::Network network = tiny_mlp(workers);
  plan::Schedule schedule =
      plan::make_schedule("1f1b", {.workers = workers, .microbatches = 32, .graph = network.graph});
  TaskGraph graph{schedule, network, {.kind = "sgd"}};
};

// The tasks that the worker runs: its own, or with `shift` another worker's.
void run_tasks(Meter& meter, const TaskGraph& graph, int worker, int shift) {
  for (const Task& task : graph.tasks()) {
    if ((task.worker + shift) % workers != worker) continue;
    meter.start(task, worker);
    meter.end(task, worker, {.submitted = 0, .ready = 0, .start = 1, .end = 2});
  }
}

// With `shift`, as under a policy that runs tasks elsewhere than the schedule says.
void expect_same_as_alone(int shift) {
  const Run run;
  const std::vector<bool> local(index(workers), true);
  Meter alone(run.graph, workers, local);
  for (int w = 0; w < workers; ++w) run_tasks(alone, run.graph, w, shift);
  Meter meter(run.graph, workers, local);
  for (int step = 0; step < 5; ++step) {
    meter.reset();
    std::atomic<bool> done = false;
    std::size_t taken = 0;
    std::thread reader([&] {
      while (!done) {
        taken += meter.take_jobs().size();
        EXPECT_EQ(meter.workers().size(), index(workers));
      }
    });
    {
      std::vector<std::jthread> threads;
      for (int w = 0; w < workers; ++w)
        threads.emplace_back([&, w] { run_tasks(meter, run.graph, w, shift); });
    }
    done = true;
    reader.join();
    ASSERT_EQ(taken + meter.take_jobs().size(), run.schedule.job_count());
    EXPECT_TRUE(meter.take_jobs().empty());
    for (std::size_t w = 0; w < local.size(); ++w) {
      const WorkerRecord expected = alone.workers()[w];
      const WorkerRecord found = meter.workers()[w];
      EXPECT_EQ(found.received, expected.received) << "worker " << w;
      EXPECT_EQ(found.peak_stashes, expected.peak_stashes) << "worker " << w;
      EXPECT_EQ(found.peak_stash_bytes, expected.peak_stash_bytes) << "worker " << w;
    }
  }
}

TEST(Meter, WorkersRecordTheirTasksAtOnce) { expect_same_as_alone(0); }
TEST(Meter, WorkersRecordTasksOfOthers) { expect_same_as_alone(3); }

TEST(GpuMemoryMeter, IsSampledAndReadByManyThreads) {
  std::atomic<std::uint64_t> used = 0;
  GpuMemoryMeter meter([&] { return ++used; }, [&] { return 1000 + used; });
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < workers; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 500; ++i) {
          meter.sample();
          const std::uint64_t starpu = meter.starpu_peak();
          const std::uint64_t driver = meter.driver_peak();
          EXPECT_LE(starpu, used);
          EXPECT_LE(driver, 1000 + used);
        }
      });
    }
  }
  EXPECT_EQ(meter.starpu_peak(), 500U * workers);
  EXPECT_GE(meter.driver_peak(), 1500U);
}

// StarPU and the driver have locks of their own: none of the meter's may be held around theirs.
TEST(GpuMemoryMeter, AsksWithoutALock) {
  std::uint64_t used = 0;
  GpuMemoryMeter* asked = nullptr;
  GpuMemoryMeter meter([&] { return used; },
                       [&] {
                         asked->sample();  // with a lock held, it would never return
                         return used;
                       });
  asked = &meter;
  used = 7;
  meter.sample_both();
  EXPECT_EQ(meter.driver_peak(), 7U);
}

}  // namespace
}  // namespace starpipe::runtime
