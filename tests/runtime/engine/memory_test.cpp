// SPDX-License-Identifier: Apache-2.0
// The memory of a run: under the bounded discipline a worker never holds more stashes than its limit,
// whatever the schedule; a run takes no more memory after 1,000 steps than after 100, and uses again what the
// first steps have used. Collective, like engine_test.cpp.
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <cblas.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include "runtime/engine/engine.hpp"
#include "runtime/host/core_share.hpp"
#include "runtime/setup/experiment.hpp"
#include "runtime/started_mpi.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/simulate/simulate.hpp"
#include "starpipe/runtime/config/config.hpp"
#include "support/config.hpp"
#include "support/datasets.hpp"
#include "support/networks.hpp"
#include "support/optimizers.hpp"
#include "support/random_schedules.hpp"
#include "support/schedules.hpp"

namespace starpipe::runtime {
namespace {

using namespace testing;
using plan::Discipline;
using plan::Schedule;
using plan::testing::between;
using plan::testing::chance;
using plan::testing::Random;

const bool one_thread = (openblas_set_num_threads(1), true);
bool is_root() { return mpi->rank() == 0; }

const RuntimeConfig patient = {.timeout = 100};

/// StarPU with `workers` logical workers over all ranks, whatever the number of the machine's cores.
Session start(int workers) {
  RuntimeConfig config;
  config.workers_per_core = workers;
  const WorkerMap map(workers, mpi->ranks());
  return {*mpi, map, share_cores(*mpi, map, config), policy_of(config)};
}

// ---- bounded memory ----

/// A published schedule, of one to three stages per worker.
std::optional<Schedule> draw_named(Random& random, int workers) {
  const auto entries = plan::schedule_entries();
  const auto& entry =
      entries[static_cast<std::size_t>(between(random, 0, static_cast<int>(entries.size()) - 1))];
  plan::ScheduleRequest request{.workers = workers, .microbatches = between(random, 1, 8)};
  request.graph = plan::StageGraph::chain(workers * between(random, 1, 3));
  if (workers % 2 == 0 && chance(random, 0.5)) request.groups = 2;
  try {
    const Schedule schedule = plan::make_schedule(entry.name, request);
    return chance(random, 0.5) ? split(schedule) : schedule;
  } catch (const InputError&) {
    return std::nullopt;  // the schedule does not exist for these numbers
  }
}

/// A schedule with random w and n.
std::optional<Schedule> draw_any(Random& random, int workers) {
  const plan::ScheduleSpec spec = plan::testing::random_spec(
      random, {.max_workers = workers, .one_worker_a_stash = true, .sound_priority = 0.5});
  if (spec.workers != workers) return std::nullopt;
  return Schedule(spec);
}

/// A named or a random schedule, with limits that `check` accepts and that are mostly tight.
Schedule draw_bounded(Random& random, int workers) {
  for (;;) {
    const auto drawn = chance(random, 0.5) ? draw_named(random, workers) : draw_any(random, workers);
    if (!drawn) continue;
    const Schedule schedule = drawn->with(Discipline::bounded, plan::testing::random_limits(random, *drawn));
    if (plan::check(schedule).ok()) return schedule;
  }
}

/// Every order of jobs needs room for all stages of one micro-batch that a worker computes.
void expect_smaller_limits_refused(const Schedule& schedule, Random& random) {
  const std::vector<int> min = smallest_limits(schedule);
  const auto w = index(between(random, 0, schedule.workers() - 1));
  std::vector<int> limits(schedule.memory_limits().begin(), schedule.memory_limits().end());
  limits[w] = min[w] - 1;
  const std::string problem = plan::check(schedule.with(Discipline::bounded, limits)).problem;
  EXPECT_NE(problem.find("worker " + std::to_string(w) + ": a memory limit of "), std::string::npos)
      << problem;
}

std::vector<WorkerRecord> run_once(const Session& session, const Schedule& schedule) {
  const model::Network network = dag_network(schedule.graph());
  Engine engine(session, schedule, network, plain_sgd, model::given_values(start_values(network)), patient);
  return engine.run_step(0, Noise()).workers;
}

class BoundedMemory : public ::testing::TestWithParam<int> {};

TEST_P(BoundedMemory, NeverPassesTheLimit) {
  const int workers = GetParam();
  if (workers < mpi->ranks()) GTEST_SKIP() << "at least one worker per rank";
  const int cases = mpi->ranks() == 1 ? 1000 / 6 + 1 : 20;  // a thousand in all, on one rank
  const Session session = start(workers);
  Random random(static_cast<std::uint64_t>(workers));
  int at_limit = 0;
  for (int i = 0; i < cases; ++i) {
    const Schedule schedule = draw_bounded(random, workers);
    SCOPED_TRACE(::testing::Message() << "case " << i << ", " << schedule.name());
    expect_smaller_limits_refused(schedule, random);
    // train and compare run the schedule with an order that is decided once.
    const plan::Costs costs = plan::testing::random_costs(random, schedule.stages());
    const Schedule decided = plan::ordered_as_simulated(schedule, costs);
    EXPECT_EQ(plan::check(decided).problem, "");
    const std::vector<int> predicted = plan::simulate(decided).peak_stashes;

    const std::vector<WorkerRecord> dynamic = run_once(session, schedule);
    const std::vector<WorkerRecord> as_decided = run_once(session, decided);
    for (std::size_t w = 0; w < dynamic.size(); ++w) {
      const int limit = schedule.memory_limits()[w];
      EXPECT_LE(dynamic[w].peak_stashes, limit) << "worker " << w;
      EXPECT_LE(as_decided[w].peak_stashes, limit) << "worker " << w << ", decided once";
      EXPECT_EQ(as_decided[w].peak_stashes, predicted[w]) << "worker " << w;
      at_limit += dynamic[w].peak_stashes == limit ? 1 : 0;
    }
    if (HasFailure()) return;
  }
  if (is_root()) {
    EXPECT_GT(at_limit, cases / 4) << "limits that no worker reaches test little";
  }
}

// train and compare decide the order by `simulate`, with the FLOPs or with emulated times. Some times are
// zero here.
TEST_P(BoundedMemory, OfAnExperimentIsAsPredicted) {
  const int workers = GetParam();
  if (workers < mpi->ranks()) GTEST_SKIP() << "at least one worker per rank";
  const Session session = start(workers);
  for (const char* name : {"1f1b", "zb-h2", "v-half"}) {
    for (const int limit : {1, 3}) {
      for (const bool emulated : {false, true}) {
        SCOPED_TRACE(::testing::Message() << name << ", limit " << limit << (emulated ? ", emulated" : ""));
        Config config = config_of(small("mlp", {{"layers", 2 * workers}, {"hidden", 4}}), name, workers, 7);
        config.schedule.memory_limits = {limit};
        if (emulated) config.runtime.emulate = {.F = {0}, .B = {1e-5}, .W = {0}};
        const int needed = plan::find_schedule(name).stages_per_worker;
        if (limit < needed) {
          EXPECT_THROW(make_experiment(config), InputError);
          continue;
        }
        const Experiment experiment = make_experiment(config);
        EXPECT_EQ(plan::check(experiment.schedule).problem, "");
        const plan::Costs& costs = experiment.costs;
        const plan::Timeline predicted = plan::simulate(experiment.schedule, costs);
        Engine engine(session, experiment.schedule, experiment.network, plain_sgd,
                      model::given_values(start_values(experiment.network)), patient,
                      experiment.emulated ? &costs : nullptr);
        const std::vector<WorkerRecord> measured = engine.run_step(0, *experiment.data).workers;
        for (std::size_t w = 0; w < measured.size(); ++w) {
          EXPECT_LE(measured[w].peak_stashes, limit) << "worker " << w;
          EXPECT_EQ(measured[w].peak_stashes, predicted.peak_stashes[w]) << "worker " << w;
          EXPECT_EQ(measured[w].peak_stash_bytes, predicted.peak_stash_bytes[w]) << "worker " << w;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(OnWorkers, BoundedMemory, ::testing::Range(1, 7),
                         [](const auto& test) { return std::to_string(test.param); });

// ---- flat memory ----

/// Bytes of this process.
struct Memory {
  std::size_t resident = 0;
  std::size_t heap = 0;    // given out by malloc; zero under sanitizers
  std::size_t starpu = 0;  // allocated by StarPU for data
};

Memory memory_now() {
  std::size_t pages = 0;
  std::size_t resident_pages = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident_pages;
  return {.resident = resident_pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE)),
          .heap = mallinfo2().uordblks,
          .starpu = starpu_memory_get_used(STARPU_MAIN_RAM)};
}

// A leak of 100 bytes per step would show; a step has 20 to 60 tasks.
TEST(Memory, IsFlatOverAThousandSteps) {
  constexpr int workers = 2;
  const Session session = start(workers);
  const model::Network network = tiny_mlp(workers);
  const auto data = data_for(network);
  plan::Costs links = costs_of(network);
  links.durations = {{.F = 0, .B = 0, .W = 0}};
  links.links = plan::Link{.alpha = 1e-6};
  for (const auto& [name, emulated] : {std::pair{"1f1b", false}, {"fsdp", false}, {"1f1b", true}}) {
    SCOPED_TRACE(std::string(name) + (emulated ? ", emulated" : ""));
    const Schedule schedule = plan::make_schedule(name, {.workers = workers, .microbatches = 3});
    Engine engine(session, schedule, network, plain_sgd, model::given_values(start_values(network)), patient,
                  emulated ? &links : nullptr);
    Memory early;
    for (int step = 0; step < 1000; ++step) {
      engine.run_step(step, *data);
      if (step == 99) early = memory_now();
    }
    const Memory late = memory_now();
    EXPECT_LE(late.heap, early.heap + 90'000);
    EXPECT_EQ(late.starpu, early.starpu);
#ifndef __SANITIZE_ADDRESS__  // the address sanitizer keeps freed memory for a while
    EXPECT_LE(late.resident, early.resident + 1'000'000);
#endif
  }
}

// A handle of StarPU for each datum of a job would take 34 KB, records of tasks that have ended 3 KB.
TEST(Memory, IsFlatInTheMicroBatches) {
  constexpr int workers = 2;
  const Session session = start(workers);
  const model::Network network = tiny_mlp(workers);
  plan::Costs links = costs_of(network);
  links.durations = {{.F = 0, .B = 0, .W = 0}};
  const auto heap_of = [&](int microbatches, double alpha) {
    links.links = plan::Link{.alpha = alpha};
    const Schedule schedule = plan::make_schedule("1f1b", {.workers = workers, .microbatches = microbatches});
    Engine engine(session, schedule, network, plain_sgd, model::given_values(start_values(network)),
                  {.timeout = patient.timeout, .window = 100}, &links);
    engine.run_step(0, Noise());
    return memory_now().heap;
  };
  for (const double alpha : {0.0, 1e-6}) {
    SCOPED_TRACE(::testing::Message() << "alpha " << alpha);
    const std::size_t some = heap_of(500, alpha);
    const std::size_t more = heap_of(1500, alpha);
    const std::size_t jobs = index(2 * workers * 1000);
    EXPECT_LE(more, some + 1000 * jobs);
  }
}

// ---- memory that is used again ----

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they have an allocator of their own
/// Returns how many pages the process has got from the system.
long pages_got() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

// The allocator is as the system starts it, as in a program that embeds the library. A step writes 8 to 60 MB
// of stashes, 2,000 to 15,000 pages.
TEST(Memory, ServesTheNextStepWithoutPageFaults) {
  for (const int workers : {1, 2}) {
    if (workers < mpi->ranks()) continue;
    const Session session = start(workers);
    for (const char* name :
         {"gpipe", "1f1b", "zb-h1", "v-half", "interleaved-1f1b", "chimera", "ddp", "fsdp"}) {
      if (workers == 1 && std::string(name) == "chimera") continue;  // needs two
      SCOPED_TRACE(::testing::Message() << name << ", " << workers << " workers");
      const Schedule schedule = plan::make_schedule(name, {.workers = workers, .microbatches = 8});
      const model::Network network = model::build_network(
          small("gpt", {{"layers", 4}, {"hidden", 64}, {"context", 64}}), 8, schedule.stages());
      const auto data = data_for(network, schedule.microbatches());
      Engine engine(session, schedule, network, plain_sgd, model::given_values(start_values(network)),
                    patient);
      for (int step = 0; step < 2; ++step) engine.run_step(step, *data);
      const long before = pages_got();
      for (int step = 2; step < 6; ++step) engine.run_step(step, *data);
      EXPECT_LE(pages_got() - before, 4 * 50);
    }
  }
}
#endif

}  // namespace
}  // namespace starpipe::runtime
