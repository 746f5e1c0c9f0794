// SPDX-License-Identifier: Apache-2.0
// The best mapping of workers to devices, on machines that the test makes up.
#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <set>

#include <gmock/gmock.h>

#include "runtime/host/hardware.hpp"
#include "runtime/host/locality.hpp"
#include "runtime/host/machines.hpp"
#include "runtime/host/worker_map.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/registry/registry.hpp"

namespace starpipe::runtime {
namespace {

using namespace testing;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<plan::Traffic> traffic_of(const char* name, int workers, int microbatches = 8) {
  plan::Costs costs;
  costs.sizes = {
      {.activation = 1000, .gradient = 1000, .stash = 1000, .gradient_stash = 1000, .weights = 5000}};
  return plan::count_traffic(plan::make_schedule(name, {.workers = workers, .microbatches = microbatches}),
                             costs);
}

std::vector<Device> mapped(std::span<const Device> devices, std::span<const plan::Traffic> traffic) {
  std::vector<Device> by_worker;
  for (const int device : map_workers(devices, traffic)) by_worker.push_back(devices[index(device)]);
  return by_worker;
}

std::vector<bool> in_turn(std::size_t workers) {
  std::vector<bool> on_gpu(workers);
  for (std::size_t w = 0; w < workers; w += 2) on_gpu[w] = true;
  return on_gpu;
}

/// Shuffles the devices of each kind among themselves.
std::vector<Device> shuffled_in_kinds(std::vector<Device> devices, std::mt19937_64& random) {
  for (std::size_t w = 1; w < devices.size(); ++w) {
    const std::size_t other = random() % (w + 1);
    if (devices[other].kind == devices[w].kind) std::swap(devices[other], devices[w]);
  }
  return devices;
}

/// The least cost over all mappings that give each worker a device of its own kind.
double min_seconds(const std::vector<Device>& devices, std::span<const plan::Traffic> traffic) {
  std::vector<std::size_t> order(devices.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  double min = std::numeric_limits<double>::infinity();
  do {
    std::vector<Device> tried;
    for (std::size_t w = 0; w < order.size() && devices[order[w]].kind == devices[w].kind; ++w)
      tried.push_back(devices[order[w]]);
    if (tried.size() == devices.size()) min = std::min(min, link_seconds(tried, traffic));
  } while (std::ranges::next_permutation(order).found);
  return min;
}

/// Returns how many pairs of workers exchange data over a link of this kind.
int pairs_over(LinkKind kind, std::span<const Device> devices, std::span<const plan::Traffic> traffic) {
  std::set<std::pair<int, int>> pairs;
  for (const plan::Traffic& pair : traffic) {
    const DeviceLink link = link_between(devices[index(pair.from)], devices[index(pair.to)]);
    if (link.kind == kind) pairs.insert(std::minmax(pair.from, pair.to));
  }
  return static_cast<int>(pairs.size());
}

/// Devices on up to three hosts with two nodes each.
std::vector<Device> random_devices(std::mt19937_64& random, int count) {
  const auto up_to = [&random](int max) { return std::uniform_int_distribution(0, max)(random); };
  std::vector<Device> devices;
  for (int i = 0; i < count; ++i) {
    Device device;
    device.kind = DeviceKind::gpu;
    device.host = std::to_string(up_to(2));
    device.number = i;
    device.numa = std::to_string(up_to(1));
    device.pci = std::to_string(i);
    device.bridges = {"host " + device.numa, std::to_string(up_to(2))};
    for (int other = 0; other < i; ++other) {
      if (up_to(3) == 0) device.nvlink[std::to_string(other)] = 25.0 * (1 + up_to(3));
    }
    devices.push_back(device);
  }
  return devices;
}

std::vector<plan::Traffic> random_traffic(std::mt19937_64& random, int workers) {
  std::vector<plan::Traffic> traffic;
  for (int from = 0; from < workers; ++from) {
    for (int to = 0; to < workers; ++to) {
      if (from == to || random() % 3 == 0) continue;
      traffic.push_back({from, to, {1, random() % 1000}});
    }
  }
  return traffic;
}

TEST(Mapping, FewWorkersGetTheBest) {
  std::mt19937_64 random(5);
  int improved = 0;
  for (int run = 0; run < 60; ++run) {
    const int count = 1 + static_cast<int>(random() % 7);
    const auto devices = random_devices(random, count);
    const auto traffic = random_traffic(random, count);
    const double min = min_seconds(devices, traffic);
    EXPECT_NEAR(link_seconds(mapped(devices, traffic), traffic), min, 1e-6 * min);
    improved += min < link_seconds(devices, traffic);
  }
  EXPECT_GT(improved, 30);
}

TEST(Mapping, ManyWorkersGetAPermutationThatIsNoWorse) {
  std::mt19937_64 random(6);
  for (const int count : {10, 17, 33, 64}) {
    const auto devices = random_devices(random, count);
    for (const auto& traffic : {random_traffic(random, count), traffic_of("1f1b", count)}) {
      const std::vector<int> mapping = map_workers(devices, traffic);
      EXPECT_EQ(mapping, map_workers(devices, traffic)) << "deterministic";
      EXPECT_THAT(std::set<int>(mapping.begin(), mapping.end()), SizeIs(count));
      EXPECT_LT(link_seconds(mapped(devices, traffic), traffic), link_seconds(devices, traffic));
    }
  }
}

TEST(Mapping, StaysLinearWhereNothingIsBetter) {
  const auto gpus = gpus_of({.gpus = {{0, 1, 2, 3}, {4, 5, 6, 7}}});
  EXPECT_THAT(map_workers(gpus, traffic_of("1f1b", 8)), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(map_workers(gpus, {}), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(map_workers({}, {}), IsEmpty());
}

TEST(Mapping, EightGpusOnTwoNodesCrossOnce) {
  // CUDA numbers the GPUs of the two packages in turn.
  const auto gpus = gpus_of({.gpus = {{0, 2, 4, 6}, {1, 3, 5, 7}}});
  const auto traffic = traffic_of("1f1b", 8);
  EXPECT_EQ(pairs_over(LinkKind::host, gpus, traffic), 7) << "linear";
  const auto best = mapped(gpus, traffic);
  EXPECT_EQ(pairs_over(LinkKind::host, best, traffic), 1);
  EXPECT_EQ(pairs_over(LinkKind::pcie_switch, best, traffic), 4);
  // A ring of chunks must cross between the packages twice; a V only once.
  const auto ring = traffic_of("interleaved-1f1b", 8);
  EXPECT_EQ(pairs_over(LinkKind::host, mapped(gpus, ring), ring), 2);
  const auto v = traffic_of("v-half", 8);
  EXPECT_EQ(pairs_over(LinkKind::host, mapped(gpus, v), v), 1);
}

TEST(Mapping, FollowsNvlinks) {
  const auto gpus = gpus_of(cube_mesh());
  const auto traffic = traffic_of("1f1b", 8);
  EXPECT_EQ(pairs_over(LinkKind::host, gpus, traffic), 1) << "3 to 4";
  const auto best = mapped(gpus, traffic);
  EXPECT_EQ(pairs_over(LinkKind::nvlink, best, traffic), 7);
  for (std::size_t w = 0; w + 1 < best.size(); ++w)
    EXPECT_DOUBLE_EQ(link_between(best[w], best[w + 1]).bandwidth, 50);
}

TEST(Mapping, OddCounts) {
  for (const auto& packages :
       std::vector<std::vector<std::vector<int>>>{{{0, 2, 4}, {1, 3}}, {{6, 1, 3}, {0, 2, 4, 5}}}) {
    const auto gpus = gpus_of({.gpus = packages});
    const auto traffic = traffic_of("1f1b", static_cast<int>(gpus.size()));
    EXPECT_EQ(pairs_over(LinkKind::host, mapped(gpus, traffic), traffic), 1) << gpus.size();
  }
}

TEST(Mapping, TwoNodesCrossTheNetworkOnce) {
  const Machine machine{.gpus = {{0, 2, 4, 6}, {1, 3, 5, 7}}};
  std::vector<Device> gpus = gpus_of(machine, "n0");
  const auto more = gpus_of(machine, "n1");
  gpus.insert(gpus.end(), more.begin(), more.end());
  std::ranges::shuffle(gpus, std::mt19937_64(3));
  const auto traffic = traffic_of("1f1b", 16);
  const auto best = mapped(gpus, traffic);
  EXPECT_EQ(pairs_over(LinkKind::network, best, traffic), 1);
  EXPECT_LE(pairs_over(LinkKind::host, best, traffic), 2);
}

TEST(Mapping, CoresOfWorkersThatTalkAreNear) {
  const Topology topology("package:2 [numa] core:5 pu:1");
  const CoreShare share = topology.share(std::vector<RankOnHost>{{"0-9", 8}}, 0);
  const auto cores = core_devices(topology, share, 8);
  std::vector<plan::Traffic> traffic;  // 0 with 7, 1 with 6, ...
  for (int w = 0; w < 4; ++w) traffic.push_back({w, 7 - w, {1, 100}});
  EXPECT_EQ(pairs_over(LinkKind::host, cores, traffic), 3);
  EXPECT_EQ(pairs_over(LinkKind::host, mapped(cores, traffic), traffic), 1)
      << "five and three of them, so one pair";
}

TEST(Mapping, WithoutBytesMessagesCount) {
  const auto gpus = gpus_of({.gpus = {{0, 2}, {1, 3}}});
  const auto traffic =
      plan::count_traffic(plan::make_schedule("1f1b", {.workers = 4, .microbatches = 4}), {});
  EXPECT_GT(link_seconds(gpus, traffic), 0);
  EXPECT_EQ(pairs_over(LinkKind::host, mapped(gpus, traffic), traffic), 1);
}

// ---- cores and GPUs together ----

TEST(Mixed, FewWorkersGetTheBestOfTheirKind) {
  std::mt19937_64 random(7);
  int improved = 0;
  for (int run = 0; run < 60; ++run) {
    const std::size_t count = 2 + random() % 7;
    std::vector<bool> on_gpu(count);
    for (std::size_t w = 0; w < count; ++w) on_gpu[w] = random() % 2 == 0;
    auto devices = mixed_of({.gpus = {{0, 2, 4, 6}, {1, 3, 5, 7}}}, on_gpu);
    if (run % 2 == 0) {  // one rank on each of two nodes
      for (std::size_t w = count / 2; w < count; ++w) devices[w].host = "n1";
    }
    for (const auto& traffic :
         {random_traffic(random, static_cast<int>(count)), traffic_of("1f1b", static_cast<int>(count)),
          traffic_of("interleaved-1f1b", static_cast<int>(count))}) {
      const auto best = mapped(devices, traffic);
      EXPECT_EQ(kinds_of(best), kinds_of(devices));
      const double min = min_seconds(devices, traffic);
      EXPECT_NEAR(link_seconds(best, traffic), min, 1e-6 * min);
      improved += min < link_seconds(devices, traffic);
    }
  }
  EXPECT_GT(improved, 60);
}

TEST(Mixed, EightGpusAndCoresInTurnCrossOnce) {
  const auto devices = mixed_of({.gpus = {{0, 2, 4, 6}, {1, 3, 5, 7}}}, in_turn(15));
  const auto traffic = traffic_of("1f1b", 15);
  EXPECT_EQ(pairs_over(LinkKind::host, devices, traffic), 7) << "linear";
  const auto best = mapped(devices, traffic);
  EXPECT_EQ(kinds_of(best), kinds_of(devices));
  EXPECT_EQ(pairs_over(LinkKind::host, best, traffic), 1);
  EXPECT_EQ(pairs_over(LinkKind::host_bridge, best, traffic), 13);
}

TEST(Mixed, OddCounts) {
  for (const auto& packages :
       std::vector<std::vector<std::vector<int>>>{{{0, 2, 4}, {1, 3}}, {{6, 1, 3}, {0, 2, 4, 5}}}) {
    const Machine machine{.gpus = packages};
    const std::size_t gpus = packages[0].size() + packages[1].size();
    const auto devices = mixed_of(machine, in_turn(2 * gpus - 1));
    const auto traffic = traffic_of("1f1b", static_cast<int>(devices.size()));
    const auto best = mapped(devices, traffic);
    EXPECT_EQ(kinds_of(best), kinds_of(devices));
    EXPECT_EQ(pairs_over(LinkKind::host, best, traffic), 1) << gpus;
  }
}

TEST(Mixed, TwoNodesCrossTheNetworkOnce) {
  const Machine machine{.cpus = "package:2 [numa] core:10 pu:1", .gpus = {{0, 2, 4, 6}, {1, 3, 5, 7}}};
  std::vector<Device> devices;
  for (const char* host : {"n0", "n1"}) {
    const auto node = mixed_of(machine, in_turn(16), host);
    devices.insert(devices.end(), node.begin(), node.end());
  }
  std::mt19937_64 random(3);
  for (int shuffle = 0; shuffle < 20; ++shuffle) {
    const auto traffic = traffic_of("1f1b", 32);
    const auto best = mapped(devices, traffic);
    EXPECT_EQ(kinds_of(best), kinds_of(devices));
    EXPECT_EQ(pairs_over(LinkKind::network, best, traffic), 1);
    EXPECT_LE(pairs_over(LinkKind::host, best, traffic), 2);
    devices = shuffled_in_kinds(std::move(devices), random);
  }
}

}  // namespace
}  // namespace starpipe::runtime
