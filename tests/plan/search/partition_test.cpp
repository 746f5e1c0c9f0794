// SPDX-License-Identifier: Apache-2.0
#include "plan/search/partition.hpp"

#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/search/partition_requests.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/search/search_problem.hpp"
#include "starpipe/plan/search/unit_costs.hpp"
#include "starpipe/plan/simulate/simulate.hpp"
#include "support/message_of.hpp"

namespace starpipe::plan {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;

/// The table of a language model: the worker of the embedding has it with its state, and receives a gradient;
/// the worker of the head has a copy and a gradient.
TEST(Partition, MemoryOfSharedWeights) {
  PartitionRequest request = chain({4, 4, 4, 4}, 2);
  request.shared = {{.name = "tokens", .units = {0, 3}, .weights = 10, .master = 20}};
  const Partition apart = partition(request);
  EXPECT_THAT(apart.cuts, ElementsAre(2));
  EXPECT_EQ(apart.loads[0].memory, 10 + 20 + (1 + 2 + 1) * 20);
  EXPECT_EQ(apart.loads[1].memory, 10 + 20);
  const Partition together = evaluate_partition(request, {1, 3}, {0, 1, 0});
  EXPECT_EQ(together.loads[0].memory, 10 + 20 + (1 + 2) * 20);
  EXPECT_EQ(together.loads[1].memory, 0);
  // Only with the embedding and the head on one worker no gradient is received.
  request.memory_limits = {90};
  EXPECT_EQ(partition(general(request)).bottleneck, 8);
  EXPECT_THAT(partition(request).stage_workers, ElementsAre(0));
  for (const std::vector<int>& units : {std::vector<int>{}, {3, 0}, {0, 0}, {-1}, {4}}) {
    request.shared[0].units = units;
    EXPECT_THROW(partition(request), InputError);
  }
}

TEST(Partition, StagesShareWhatTheirUnitsShare) {
  const PartitionRequest request = chain({4, 4, 4, 4}, 2);
  const std::vector<SharedUnits> shared = {{.name = "a", .units = {0, 1, 3}, .weights = 10, .master = 20},
                                           {.name = "b", .units = {2, 3}, .weights = 5}};
  const Costs costs = stage_costs(request.units, std::vector{2}, {}, shared);
  ASSERT_EQ(costs.shared.size(), 2U);
  EXPECT_THAT(costs.shared[0].stages, ElementsAre(0, 1));
  EXPECT_EQ(costs.shared[0].weights, 10U);
  EXPECT_EQ(costs.shared[0].master, 20U);
  EXPECT_THAT(costs.shared[1].stages, ElementsAre(1));
}

// If a CPU needs k times as long for a unit as a GPU, the GPU gets k times as many units.
TEST(Partition, AFasterWorkerGetsAsMuchMore) {
  for (const int k : {2, 3, 7}) {
    PartitionRequest request = chain(std::vector<double>(index(2 * (k + 1)), k), 2);
    for (UnitCosts& unit : request.units) unit.others = {{.F = 0.25, .B = 0.25, .W = 0.5}};
    for (const bool gpu_first : {true, false}) {
      request.kinds = gpu_first ? std::vector{1, 0} : std::vector{0, 1};
      for (const PartitionRequest& asked : {request, general(request), placed(request, {0, 1})}) {
        const Partition found = partition(asked);
        const auto owner = owners(found, request.units.size());
        EXPECT_EQ(std::ranges::count(owner, gpu_first ? 0 : 1), 2 * k);
        EXPECT_EQ(found.bottleneck, 2 * k);
        EXPECT_TRUE(found.optimal());
        EXPECT_EQ(evaluate_partition(request, found.cuts, found.stage_workers).lower_bound, 2 * k);
      }
    }
  }
}

TEST(Partition, AWorkerThatWouldHoldUpTheOthersGetsNothing) {
  PartitionRequest request = chain({1, 1, 1, 1}, 3);
  for (UnitCosts& unit : request.units) unit.others = {{.F = 100, .B = 100, .W = 100}};
  request.kinds = {0, 1, 0};
  for (const double limit : {infinity, 1e9}) {
    request.memory_limits = {limit};
    const Partition found = partition(request);
    EXPECT_THAT(found.stage_workers, ElementsAre(0, 2));
    EXPECT_THAT(found.cuts, ElementsAre(2));
  }
}

TEST(Partition, StageCostsAreThoseOfTheirDevices) {
  PartitionRequest request = chain({4, 8, 12}, 2);
  for (UnitCosts& unit : request.units) unit.others = {{.F = 1, .B = 2, .W = 3}};
  const Costs costs = stage_costs(request.units, std::vector{2}, std::vector{1, 0});
  EXPECT_EQ(costs.durations[0].W, 6);
  EXPECT_EQ(costs.durations[1].W, 6);
  EXPECT_EQ(costs.durations[0].F, 2);
  EXPECT_EQ(costs.durations[1].F, 3);
}

TEST(Partition, KindsNeedTimes) {
  PartitionRequest request = chain({1, 1}, 2);
  request.kinds = {0, 1};
  EXPECT_THROW(partition(request), InputError);
  request.kinds = {0};
  EXPECT_THROW(partition(request), InputError);
}

// Separability, exercise on load balancing.
const std::vector<double> exercise = {10, 10, 10, 10, 20, 20, 20, 20};

TEST(Partition, ExerciseOfSource001) {
  const PartitionRequest request = chain(exercise, 4);
  const Partition naive = evaluate_partition(request, equal_cuts(8, 4), {0, 1, 2, 3});
  EXPECT_THAT(naive.cuts, ElementsAre(2, 4, 6));
  EXPECT_EQ(naive.bottleneck, 40);
  EXPECT_EQ(naive.lower_bound, 30);
  // The exercise's "mixed" partition.
  const Partition mixed = partition(general(request));
  EXPECT_EQ(mixed.bottleneck, 30);
  EXPECT_TRUE(mixed.optimal());
  for (const WorkerLoad& load : mixed.loads) EXPECT_EQ(load.load(), 30);
  EXPECT_EQ(evaluate_partition(request, {1, 2, 3, 4, 5, 6, 7}, {0, 1, 2, 3, 0, 1, 2, 3}).bottleneck, 30);
  // Contiguous parts on four workers: two units of 20 are on one worker, or one is with units of 10.
  const Partition contiguous = partition(request);
  EXPECT_EQ(contiguous.bottleneck, 40);
  EXPECT_TRUE(contiguous.optimal());
  // A loop of two chunks is as good as the mixed partition.
  EXPECT_EQ(partition(placed(request, layout_workers(Layout::loop, 4, 2))).bottleneck, 30);
}

TEST(Partition, EvenWhereTheBottleneckLeavesAChoice) {
  EXPECT_THAT(partition(chain({9, 1, 1, 1, 1, 1, 1}, 3)).cuts, ElementsAre(1, 4));
}

// Pipelined Model Parallelism, theorem 5: contiguous over general is 2 - 1/k.
TEST(Partition, ContiguousMayTakeAlmostTwiceAsLong) {
  for (const int k : {2, 3}) {
    const double part = 1.0 / (2 * k + 1);
    std::vector<double> times;
    for (int i = 0; i < k; ++i) {
      for (const double time : {k + 0.0, part, k - 1.0, part}) times.push_back(time);
    }
    times.push_back(k);
    times.insert(times.end(), index((k - 2) * (2 * k + 1) + 1), part);
    times.push_back(1);
    const PartitionRequest request = chain(times, 2 * k + 1);
    const Partition best = partition(general(request));
    EXPECT_TRUE(best.optimal());
    EXPECT_NEAR(best.bottleneck, k, 1e-9);
    EXPECT_NEAR(partition(request).bottleneck, 2 * k - 1 + part, 1e-9);
  }
}

PartitionRequest weights(const std::vector<std::uint64_t>& bytes, int workers) {
  PartitionRequest request = chain(std::vector<double>(bytes.size(), 1), workers);
  for (std::size_t l = 0; l < bytes.size(); ++l) request.units[l].sizes.weights = bytes[l];
  request.optimizer_states = 0;
  return request;
}

// Pipelined Model Parallelism, lemma 2.
TEST(Partition, SomeFitOnlyWhenNotContiguous) {
  PartitionRequest request = weights({1, 2, 1}, 2);
  request.memory_limits = {4};  // weights and gradients
  EXPECT_THAT(owners(partition(general(request)), 3), ElementsAre(0, 1, 0));
  EXPECT_THAT(message_of([&] { partition(request); }),
              AllOf(HasSubstr("limit of 4 bytes is too small for every partition"), EndsWith("works is 6")));
}

TEST(Partition, MemoryFollowsTheSchedule) {
  PartitionRequest request = chain({1, 1, 1, 1}, 2);
  for (UnitCosts& unit : request.units) unit.sizes = {.stash = 100, .weights = 10};
  request.stashes = stashes_held(make_schedule("1f1b", {.workers = 2, .microbatches = 8}));
  EXPECT_THAT(request.stashes, ElementsAre(1, 2));
  const Partition even = partition(request);
  EXPECT_THAT(even.cuts, ElementsAre(2));
  EXPECT_EQ(even.loads[0].memory, 2 * 40 + 2 * 2 * 100);
  EXPECT_EQ(even.loads[1].memory, 2 * 40 + 2 * 100);
  request.memory_limits = {479};  // less than two units with two stashes each need on the first worker
  const Partition tight = partition(request);
  EXPECT_THAT(tight.cuts, ElementsAre(1));
  EXPECT_EQ(tight.bottleneck, 3);
}

TEST(Partition, StashesOfNamedSchedules) {
  const ScheduleRequest four{.workers = 4, .microbatches = 6};
  EXPECT_THAT(stashes_held(make_schedule("1f1b", four)), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(stashes_held(make_schedule("1f1b", {.workers = 4, .microbatches = 3})),
              ElementsAre(1, 2, 3, 3));
  EXPECT_THAT(stashes_held(make_schedule("gpipe", four)), ElementsAre(6, 6, 6, 6));
  EXPECT_THAT(stashes_held(make_schedule("eager-1f1b", four)), ElementsAre(1, 3, 5, 6));
  EXPECT_THAT(stashes_held(make_schedule("naive", four)), ElementsAre(1, 1, 1, 1));
}

// Memory of a partition against the peak in `simulate`: equal with one stage per worker, an upper bound with
// several.
TEST(Partition, MemoryIsWhatSimulateShows) {
  RandomRequests random;
  for (const char* name : {"1f1b", "gpipe", "interleaved-1f1b", "v-half", "looped-bfs"}) {
    const ScheduleEntry& entry = find_schedule(name);
    const Schedule schedule = make_schedule(name, {.workers = 3, .microbatches = 6});
    const auto stage_workers = stage_workers_of(schedule);
    ASSERT_TRUE(stage_workers);
    for (int i = 0; i < 20; ++i) {
      PartitionRequest request = random.next(12, 1);
      while (static_cast<int>(request.units.size()) < schedule.stages()) request = random.next(12, 1);
      for (UnitCosts& unit : request.units) unit.sizes.weights = 0;
      request.workers = 3;
      request.stashes = stashes_held(schedule);
      const Partition found = partition(placed(request, *stage_workers));
      const Timeline timeline = simulate(schedule, stage_costs(request.units, found.cuts));
      for (std::size_t w = 0; w < 3; ++w) {
        const auto bytes = static_cast<double>(timeline.peak_stash_bytes[w]);
        EXPECT_LE(bytes, found.loads[w].memory) << name;
        if (entry.stages_per_worker == 1) {
          EXPECT_EQ(bytes, found.loads[w].memory) << name;
        }
        EXPECT_NEAR(timeline.busy[w], 6 * found.loads[w].time, 1e-9) << name;
      }
    }
  }
}

// A transfer costs as much as in a simulation where transfers do not overlap compute.
TEST(Partition, LoadIsBusyTimeAndTransfers) {
  PartitionRequest request = chain({2, 4, 6, 2, 3}, 3);
  for (UnitCosts& unit : request.units) unit.sizes = {.activation = 3, .gradient = 3};
  request.links = Link{.alpha = 0.25, .beta = 0.5};
  const Partition found = partition(request);
  Costs costs = stage_costs(request.units, found.cuts);
  costs.links = request.links;
  costs.prefetch = false;
  const Schedule schedule = make_schedule("1f1b", {.workers = 3, .microbatches = 400});
  double sum = 0;
  for (const WorkerLoad& load : found.loads) sum += load.load();
  EXPECT_NEAR(sum, 17 + 4 * 1.75, 1e-9);
  // In the long run the bottleneck is the period.
  EXPECT_NEAR(simulate(schedule, costs).makespan / 400 / found.bottleneck, 1, 0.02);
}

TEST(Partition, FewerWorkersWhereTransfersCostMore) {
  PartitionRequest request = chain({1, 1, 1, 1}, 4);
  request.links = Link{.alpha = 10};
  const Partition one = partition(request);
  EXPECT_THAT(one.stage_workers, ElementsAre(0));
  EXPECT_EQ(one.bottleneck, 4);
  EXPECT_EQ(partition(general(request)).bottleneck, 4);
  EXPECT_EQ(partition(placed(request, {0, 1, 2, 3})).bottleneck, 21);
}

TEST(Partition, LargeInputsEndWithABound) {
  std::mt19937 random(3);
  std::uniform_real_distribution<double> time(1, 10);
  std::vector<double> times;
  for (int l = 0; l < 300; ++l) times.push_back(time(random));
  PartitionRequest request = chain(times, 16);
  request.steps = 20'000;
  for (UnitCosts& unit : request.units) unit.sizes = {.activation = 1, .gradient = 1, .stash = 1};
  request.links = Link{.alpha = 0.01};
  for (const PartitionRequest& wide : {general(request), placed(request, layout_workers(Layout::v, 16, 2)),
                                       placed(request, layout_workers(Layout::loop, 16, 3))}) {
    const Partition found = partition(wide);
    EXPECT_FALSE(found.optimal());
    EXPECT_EQ(found.bottleneck, evaluate_partition(wide, found.cuts, found.stage_workers).bottleneck);
    EXPECT_LT(found.bottleneck, 1.03 * found.lower_bound);
  }
  EXPECT_LT(partition(general(request)).bottleneck, partition(request).bottleneck);
}

TEST(Partition, RefusesWhatMakesNoSense) {
  const PartitionRequest good = chain({1, 2, 3}, 2);
  expect_refused(chain({}, 2), "needs at least 1 unit");
  expect_refused(chain({1}, 0), "0 workers");
  expect_refused(placed(good, {0, 1, 0, 1}), "3 units do not make 4 stages");
  expect_refused(placed(good, {0, 2}), "worker 2 does not exist");
  expect_refused(placed(good, {}), "stage_workers is missing");
  PartitionRequest bad = good;
  bad.units[1].time.B = -1;
  expect_refused(bad, "unit 1 (l): times");
  bad = good;
  bad.units[1].time.F = infinity;
  expect_refused(bad, "unit 1 (l): times");
  bad = good;
  bad.memory_limits = {0};
  expect_refused(bad, "memory limit");
  bad = good;
  bad.stashes.clear();
  expect_refused(bad, "stashes");
  EXPECT_THROW(evaluate_partition(good, {1}, {0}), InputError);
  EXPECT_THROW(evaluate_partition(good, {3}, {0, 1}), InputError);
  EXPECT_THROW(evaluate_partition(good, {0}, {0, 1}), InputError);
}

}  // namespace
}  // namespace starpipe::plan
