// SPDX-License-Identifier: Apache-2.0
// The memory of GPUs, as far as tests can check it without a GPU: dropped copies, measured use, the report.
#include <stdexcept>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/engine/data_use.hpp"
#include "runtime/report/report.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "support/networks.hpp"
#include "support/optimizers.hpp"

namespace starpipe::runtime {
namespace {

using namespace testing;
using plan::Schedule;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

/// Compares the copies dropped after each task with the definition: a task drops from its GPU each copy of
/// lasting data owned elsewhere on the rank that no later task on this GPU reads. Verdicts stay in main
/// memory.
void expect_drops(const Schedule& schedule, const model::Network& network, const std::vector<int>& nodes,
                  std::size_t min) {
  const TaskGraph graph(schedule, network, plain_sgd);
  const auto node = [&](int worker) { return nodes[index(worker)]; };
  FetchedCopies copies(graph, nodes);
  std::size_t dropped = 0;
  for (int step = 0; step < 2; ++step) {
    copies.reset();
    for (std::size_t t = 0; t < graph.tasks().size(); ++t) {
      const Task& task = graph.tasks()[t];
      std::vector<std::size_t> expected;
      for (const DataAccess& access : task.data) {
        const Datum& datum = graph.data()[access.datum];
        const bool fetched = access.access == Access::read && !is_temporary(datum.kind) &&
                             datum.kind != DataKind::verdict && node(task.worker) > 0 &&
                             node(datum.worker) >= 0 && node(datum.worker) != node(task.worker);
        bool again = false;
        for (std::size_t later = t + 1; later < graph.tasks().size(); ++later) {
          for (const DataAccess& other : graph.tasks()[later].data) {
            again |= other.datum == access.datum && other.access == Access::read &&
                     node(graph.tasks()[later].worker) == node(task.worker);
          }
        }
        if (fetched && !again) expected.push_back(access.datum);
      }
      const std::vector<std::size_t> actual = copies.unread_after(task);
      EXPECT_EQ(actual, expected) << "task " << t << " of step " << step;
      dropped += actual.size();
    }
  }
  EXPECT_GE(dropped, min);
}

TEST(FetchedCopies, LeaveAfterTheirLastReaderOnTheGpu) {
  const int workers = 4;
  const model::Network network = tiny_gpt(workers);
  for (const auto& [name, groups, fetches] :
       {std::tuple{"fsdp", 0, true}, std::tuple{"fslpp", 2, true}, std::tuple{"1f1b", 0, false}}) {
    SCOPED_TRACE(name);
    plan::ScheduleRequest request{.workers = workers, .microbatches = 4, .graph = network.graph};
    if (groups > 0) request.groups = groups;
    const Schedule schedule = plan::make_schedule(name, request);
    expect_drops(schedule, network, {1, 2, 3, 4}, fetches ? 1 : 0);  // a GPU for each worker
    expect_drops(schedule, network, {1, 1, 2, 2}, 0);                // two workers on each GPU
    expect_drops(schedule, network, {0, 1, 0, 1}, 0);                // with cores
    expect_drops(schedule, network, {-1, -1, 1, 2}, 0);              // some on another rank
    expect_drops(schedule, network, {0, 0, 0, 0}, 0);
  }
}

TEST(FetchedCopies, WeightsInTheOrderOfTheirReaders) {
  const model::Network network = tiny_gpt(3);
  const Schedule schedule =
      plan::make_schedule("fsdp", {.workers = 3, .microbatches = 3, .graph = network.graph});
  const TaskGraph graph(schedule, network, plain_sgd);
  const FetchedCopies copies(graph, std::vector{1, 2, 3});
  std::map<int, std::vector<int>> stages;  // by node
  for (const auto& [datum, node] : copies.weights()) {
    EXPECT_EQ(graph.data()[datum].kind, DataKind::weights);
    stages[node].push_back(graph.data()[datum].stage);
  }
  EXPECT_THAT(stages[1], ElementsAre(1, 2));
  EXPECT_THAT(stages[2], ElementsAre(0, 2));
  EXPECT_THAT(stages[3], ElementsAre(0, 1));
}

TEST(FetchedCopies, NothingLeavesMainMemoryOrItsOwner) {
  const model::Network network = tiny_gpt(4);
  const Schedule schedule =
      plan::make_schedule("fsdp", {.workers = 4, .microbatches = 4, .graph = network.graph});
  const TaskGraph graph(schedule, network, plain_sgd);
  for (const std::vector<int>& nodes : {std::vector{0, 0, 0, 0}, std::vector{1, 1, 1, 1}}) {
    FetchedCopies copies(graph, nodes);
    for (const Task& task : graph.tasks()) EXPECT_THAT(copies.unread_after(task), ElementsAre());
  }
}

TEST(GpuMemoryMeter, KeepsThePeaksOfBothAccounts) {
  std::uint64_t starpu = 0;
  std::uint64_t driver = 500;
  int asked = 0;
  GpuMemoryMeter meter([&] { return starpu; },
                       [&] {
                         ++asked;
                         return driver;
                       });
  meter.sample();
  EXPECT_EQ(asked, 0) << "StarPU has nothing";
  for (const auto& [now, in_use] :
       {std::pair{100U, 620U}, {80U, 600U}, {100U, 999U}, {300U, 830U}, {0U, 510U}}) {
    starpu = now;
    driver = in_use;
    meter.sample();
  }
  EXPECT_EQ(meter.starpu_peak(), 300U);
  EXPECT_EQ(meter.driver_peak(), 830U) << "999 was not StarPU's";
  EXPECT_EQ(asked, 2);
  driver = 1000;
  meter.sample_both();
  EXPECT_EQ(meter.driver_peak(), 1000U);
  EXPECT_EQ(meter.starpu_peak(), 300U);
}

TEST(GpuMemoryMeters, RefuseAGpuThatIsNotTheRanks) {
  std::vector<GpuMemory> memory = {{.gpu = 2}, {.gpu = 3}};
  EXPECT_EQ(&entry_of(memory, 3), &memory[1]);
  EXPECT_THROW(entry_of(memory, 1), std::logic_error);
}

TEST(GpuMemoryMeter, StepsAddWhatIsAboveTheStart) {
  EXPECT_EQ((GpuMemory{.driver_initialised = 700, .driver_peak = 1000}.driver_added()), 300U);
  EXPECT_EQ((GpuMemory{.driver_initialised = 700, .driver_peak = 0}.driver_added()), 0U);
}

/// Two ranks: workers 0 to 2 on two GPUs and a core, 3 and 4 on one GPU of the other.
const std::vector<GpuMemory> measured = {{.rank = 0,
                                          .gpu = 0,
                                          .starpu_peak = 105U << 20,
                                          .driver_before = 1U << 20,
                                          .driver_initialised = 400U << 20,
                                          .driver_peak = 520U << 20},
                                         {.rank = 0,
                                          .gpu = 1,
                                          .starpu_peak = 98U << 20,
                                          .driver_initialised = 400U << 20,
                                          .driver_peak = 500U << 20},
                                         {.rank = 1,
                                          .gpu = 0,
                                          .starpu_peak = 200U << 20,
                                          .driver_initialised = 400U << 20,
                                          .driver_peak = 640U << 20}};

std::vector<RankLocation> two_ranks() {
  std::vector<RankLocation> locations(2);
  locations[0].logical_workers = {0, 1, 2};
  locations[0].devices = {"cuda0", "core 3", "cuda1"};
  locations[1].logical_workers = {3, 4};
  locations[1].devices = {"cuda0", "cuda0"};
  return locations;
}

std::vector<GpuUse> memory_of_two_ranks() {
  const std::vector<int> gpus = gpu_of_workers(measured, two_ranks());
  std::vector<DeviceNeed> needs(4);
  for (std::size_t g = 0; g < needs.size(); ++g) needs[g].peak.weights = (g == 2 ? 200U : 100U) << 20;
  return gpu_use(measured, gpus, needs);
}

const GpuCopies copies_of_two_ranks = {
    .pairs = 2, .peer_to_peer = 2, .between_ranks = "through the host: as a test says"};

TEST(GpuMemoryReport, WorkersOfOneGpuAreTogether) {
  EXPECT_THAT(gpu_of_workers(measured, two_ranks()), ElementsAre(0, 3, 1, 2, 2));
  const std::vector<GpuUse> gpus = memory_of_two_ranks();
  ASSERT_EQ(gpus.size(), 3U);
  EXPECT_THAT(gpus[0].workers, ElementsAre(0));
  EXPECT_THAT(gpus[2].workers, ElementsAre(3, 4));
  EXPECT_EQ(gpus[2].predicted, 200U << 20);
}

TEST(GpuMemoryReport, TellsPredictedBesideMeasured) {
  const std::string text = to_text(memory_of_two_ranks());
  EXPECT_THAT(
      text,
      HasSubstr(
          "rank 0 cuda0    0              100.0 MiB   105.0 MiB      +5.0 %     400.0 MiB     120.0 MiB\n"));
  EXPECT_THAT(
      text,
      HasSubstr(
          "rank 1 cuda0    3 4            200.0 MiB   200.0 MiB      +0.0 %     400.0 MiB     240.0 MiB\n"));
  EXPECT_EQ(to_text(std::span<const GpuUse>()), "") << "cores share main memory";
}

TEST(GpuMemoryReport, IsInTheReportFile) {
  const auto json = to_json(memory_of_two_ranks());
  ASSERT_EQ(json.size(), 3U);
  const auto& gpu = json[0];
  EXPECT_EQ(gpu["device"], "cuda0");
  EXPECT_EQ(gpu["predicted"], 100U << 20);
  EXPECT_EQ(gpu["starpu_peak"], 105U << 20);
  EXPECT_EQ(gpu["driver"]["added_by_steps"], 120U << 20);
}

TEST(GpuCopies, AreNamedByPath) {
  EXPECT_EQ(to_text(copies_of_two_ranks),
            "GPU to GPU within ranks: peer to peer for 2 of 2 ordered pairs\n"
            "GPU to GPU between ranks: through the host: as a test says\n");
  EXPECT_EQ(to_text(GpuCopies()), "");
}

TEST(GpuCopies, AreInTheReportFile) {
  const auto json = to_json(copies_of_two_ranks);
  EXPECT_EQ(json["within_ranks"]["peer_to_peer"], 2);
  EXPECT_EQ(json["between_ranks"], "through the host: as a test says");
  EXPECT_FALSE(to_json(GpuCopies()).contains("between_ranks"));
}

TEST(GpuCopies, SayWhyMessagesGoThroughTheHost) {
  EXPECT_THAT(path_between_ranks(std::nullopt, true, false), HasSubstr("unknown"));
  EXPECT_THAT(path_between_ranks(true, true, false), HasSubstr("direct"));
  EXPECT_THAT(path_between_ranks(false, true, true), HasSubstr("STARPU_MPI_GPUDIRECT=0"));
  EXPECT_THAT(path_between_ranks(false, false, false), HasSubstr("this MPI was not built"));
  EXPECT_THAT(path_between_ranks(false, true, false), HasSubstr("scripts/setup"));
}

}  // namespace
}  // namespace starpipe::runtime
