// SPDX-License-Identifier: Apache-2.0
// Where devices are on machines that the test makes up, as hwloc tells it, and the best mapping of workers.
#include "runtime/hardware/mapping.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <set>

#include <gmock/gmock.h>
#include <unistd.h>

#include "runtime/hardware/gpu_division.hpp"
#include "runtime/hardware/link.hpp"
#include "runtime/hardware/locality.hpp"
#include "runtime/hardware/machines.hpp"
#include "runtime/session/worker_map.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/plan/registry/registry.hpp"

namespace starpipe::runtime {
namespace {

using namespace testing;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<Device> gpus_of(const Machine& machine, const std::string& host = "") {
  const MachineFile file(machine);
  std::vector<Device> gpus = find_gpus(Topology::from_file(file.path()));
  for (Device& gpu : gpus) gpu.host = host;
  std::ranges::sort(gpus, {}, &Device::number);
  return gpus;
}

std::vector<plan::Traffic> traffic_of(const char* name, int workers, int microbatches = 8) {
  plan::Costs costs;
  costs.sizes = {
      {.activation = 1000, .gradient = 1000, .stash = 1000, .gradient_stash = 1000, .weights = 5000}};
  return plan::count_traffic(plan::make_schedule(name, {.workers = workers, .microbatches = microbatches}),
                             costs);
}

std::vector<Device> mapped(std::span<const Device> devices, std::span<const plan::Traffic> traffic) {
  std::vector<Device> by_worker;
  for (const int device : map_workers(devices, traffic))
    by_worker.push_back(devices[index(device)]);
  return by_worker;
}

/// By worker, for a rank that has the machine alone: its GPU, in the order of their numbers, or its core.
std::vector<Device> mixed_of(const Machine& machine, const std::vector<bool>& on_gpu,
                             const std::string& host = "") {
  const MachineFile file(machine);
  const Topology topology = Topology::from_file(file.path());
  std::vector<Device> numbered = gpus_of(machine);
  std::vector<std::optional<Device>> gpus(on_gpu.size());
  auto next = numbered.begin();
  for (std::size_t place = 0; place < gpus.size(); ++place) {
    if (on_gpu[place]) gpus[place] = *next++;
  }
  const std::vector<RankOnHost> alone = {{topology.binding(), static_cast<int>(on_gpu.size())}};
  const CoreShare share = near_gpus(topology, topology.share(alone, 0), gpus);
  std::vector<Device> devices = slot_devices(topology, share, gpus, static_cast<int>(on_gpu.size()));
  for (Device& device : devices) device.host = host;
  return devices;
}

std::vector<bool> in_turn(std::size_t workers) {
  std::vector<bool> on_gpu(workers);
  for (std::size_t w = 0; w < workers; w += 2) on_gpu[w] = true;
  return on_gpu;
}

std::vector<DeviceKind> kinds_of(std::span<const Device> devices) {
  std::vector<DeviceKind> kinds;
  for (const Device& device : devices) kinds.push_back(device.kind);
  return kinds;
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
double least_seconds(const std::vector<Device>& devices, std::span<const plan::Traffic> traffic) {
  std::vector<std::size_t> order(devices.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  double least = std::numeric_limits<double>::infinity();
  do {
    std::vector<Device> tried;
    for (std::size_t w = 0; w < order.size() && devices[order[w]].kind == devices[w].kind; ++w)
      tried.push_back(devices[order[w]]);
    if (tried.size() == devices.size()) least = std::min(least, link_seconds(tried, traffic));
  } while (std::ranges::next_permutation(order).found);
  return least;
}

/// How many pairs of workers exchange data over a link of this kind.
int pairs_over(LinkKind kind, std::span<const Device> devices, std::span<const plan::Traffic> traffic) {
  std::set<std::pair<int, int>> pairs;
  for (const plan::Traffic& pair : traffic) {
    const Link link = link_between(devices[index(pair.from)],
                                   devices[index(pair.to)]);
    if (link.kind == kind) pairs.insert(std::minmax(pair.from, pair.to));
  }
  return static_cast<int>(pairs.size());
}

// ---- what hwloc says ----

TEST(Gpus, AreThoseOfNvidiaOrWithACudaDevice) {
  const auto gpus = gpus_of({.gpus = {{1, 0}, {2}}});
  ASSERT_THAT(gpus, SizeIs(3));
  EXPECT_EQ(gpus[0].name, "cuda0");
  EXPECT_EQ(gpus[0].pci, gpu_address(0, 1)) << "CUDA numbers them as it likes";
  EXPECT_EQ(gpus[0].numa, "0");
  EXPECT_EQ(gpus[2].numa, "1");
  EXPECT_THAT(gpus[0].bridges, ElementsAre("host 0000:10", "0000:00:00.0"));
  // Without CUDA devices, GPUs are numbered by address.
  const auto unnamed = gpus_of({.gpus = {{-1, -1}, {-1}}});
  ASSERT_THAT(unnamed, SizeIs(3));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(unnamed[index(i)].number, i);
  EXPECT_EQ(unnamed[0].pci, gpu_address(0, 0));
  EXPECT_THAT(find_gpus(Topology("package:2 core:2 pu:1")), IsEmpty());
}

TEST(Gpus, LinksAreWhatLiesBetweenThem) {
  const auto gpus = gpus_of({.gpus = {{0, 1, 2, 3}, {4, 5}}});
  EXPECT_EQ(link_between(gpus[0], gpus[0]).kind, LinkKind::same);
  EXPECT_EQ(link_between(gpus[0], gpus[1]).kind, LinkKind::pcie_switch);
  EXPECT_EQ(link_between(gpus[0], gpus[2]).kind, LinkKind::host_bridge);
  EXPECT_EQ(link_between(gpus[0], gpus[4]).kind, LinkKind::host);
  Device elsewhere = gpus[0];
  elsewhere.host = "another";
  EXPECT_EQ(link_between(gpus[0], elsewhere).kind, LinkKind::network) << "same address, other host";
  double before = std::numeric_limits<double>::infinity();
  for (const Link& link : {link_between(gpus[0], gpus[1]), link_between(gpus[0], gpus[2]),
                           link_between(gpus[0], gpus[4]), link_between(gpus[0], elsewhere)}) {
    EXPECT_LT(link.bandwidth, before) << to_string(link.kind);
    before = link.bandwidth;
  }
}

TEST(Gpus, AreFartherFromThoseOfOtherRanks) {
  auto gpus = gpus_of({.gpus = {{0, 1, 2}}});
  const double before = link_between(gpus[0], gpus[1]).bandwidth;
  gpus[1].rank = 1;
  EXPECT_EQ(link_between(gpus[0], gpus[1]).kind, LinkKind::pcie_switch);
  EXPECT_DOUBLE_EQ(link_between(gpus[0], gpus[1]).bandwidth, before / 2);
  Device shared = gpus[0];
  shared.rank = 1;
  EXPECT_EQ(link_between(gpus[0], shared).kind, LinkKind::same);
  EXPECT_LT(link_between(gpus[0], shared).bandwidth, 1000) << "two processes on one GPU send messages";
}

TEST(Gpus, NvlinksHaveTheirBandwidth) {
  const auto gpus = gpus_of(cube_mesh());
  ASSERT_THAT(gpus, SizeIs(8));
  EXPECT_EQ(link_between(gpus[0], gpus[4]).kind, LinkKind::nvlink) << "across sockets, yet near";
  EXPECT_DOUBLE_EQ(link_between(gpus[0], gpus[4]).bandwidth, 50);
  EXPECT_DOUBLE_EQ(link_between(gpus[1], gpus[0]).bandwidth, 25);
  EXPECT_EQ(link_between(gpus[0], gpus[5]).kind, LinkKind::host);
}

TEST(Cores, LinksAreCachesAndNodes) {
  const Topology topology("package:2 [numa] l3:2 core:4 pu:2");
  const CoreShare share = topology.share(std::vector<RankOnHost>{{"0-31", 15}}, 0);
  const auto cores = core_devices(topology, share, 15);
  ASSERT_THAT(cores, SizeIs(15));
  EXPECT_EQ(cores[3].name, "core 3");
  EXPECT_EQ(cores[3].number, 6) << "its first PU";
  EXPECT_EQ(link_between(cores[0], cores[3]).kind, LinkKind::cache);
  EXPECT_EQ(link_between(cores[0], cores[4]).kind, LinkKind::numa);
  EXPECT_EQ(link_between(cores[0], cores[8]).kind, LinkKind::host);
  // Floating workers have no core; they have a NUMA node when their rank stays within one.
  const CoreShare oversubscribed = topology.share(std::vector<RankOnHost>{{"0-7", 8}}, 0);
  const auto floating = core_devices(topology, oversubscribed, 8);
  EXPECT_EQ(floating[0].number, -1);
  EXPECT_EQ(link_between(floating[0], floating[1]).kind, LinkKind::numa) << "not the same device";
}

TEST(Machines, FilesThatAreNoneAreNamed) {
  const auto problem = [](const std::filesystem::path& file) -> std::string {
    try {
      static_cast<void>(Topology::from_file(file));
      return "";
    } catch (const InputError& error) {
      return error.what();
    }
  };
  EXPECT_THAT(problem("/nonexistent.xml"), ::testing::HasSubstr("/nonexistent.xml"));
  const auto file =
      std::filesystem::temp_directory_path() / ("starpipe_" + std::to_string(getpid()) + "_none");
  std::ofstream(file) << "layers: []\n";
  EXPECT_THAT(problem(file), ::testing::HasSubstr(file.string()));
  std::filesystem::remove(file);
}

// ---- the mapping ----

/// Devices on up to three hosts with two nodes each.
std::vector<Device> random_devices(std::mt19937_64& random, int count) {
  const auto up_to = [&random](int most) { return std::uniform_int_distribution(0, most)(random); };
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

TEST(Mapping, OfAFewIsTheBest) {
  std::mt19937_64 random(5);
  int improved = 0;
  for (int run = 0; run < 60; ++run) {
    const int count = 1 + static_cast<int>(random() % 7);
    const auto devices = random_devices(random, count);
    const auto traffic = random_traffic(random, count);
    const double least = least_seconds(devices, traffic);
    EXPECT_NEAR(link_seconds(mapped(devices, traffic), traffic), least, 1e-6 * least);
    improved += least < link_seconds(devices, traffic);
  }
  EXPECT_GT(improved, 30);
}

TEST(Mapping, OfManyIsAPermutationAndNoWorse) {
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

TEST(Mapping, CoresOfPairsThatTalk) {
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

TEST(Mixed, CoresAreNearTheGpusOfTheirPartOfTheMachine) {
  // Worker 1 is as near to the GPU of slot 0 as to the GPU of slot 2; the lower slot wins.
  const auto devices = mixed_of({.gpus = {{0, 2}, {1, 3}}}, {true, false, true, false, false, true});
  EXPECT_THAT(kinds_of(devices), ElementsAre(DeviceKind::gpu, DeviceKind::core, DeviceKind::gpu,
                                             DeviceKind::core, DeviceKind::core, DeviceKind::gpu));
  EXPECT_EQ(devices[2].name, "cuda1");
  EXPECT_EQ(devices[1].numa, "0");
  EXPECT_EQ(devices[3].numa, "1");
  EXPECT_EQ(devices[4].numa, "0");
  EXPECT_EQ(link_between(devices[0], devices[1]).kind, LinkKind::host_bridge);
  EXPECT_EQ(link_between(devices[1], devices[0]).kind, LinkKind::host_bridge);
  EXPECT_EQ(link_between(devices[0], devices[3]).kind, LinkKind::host);
  EXPECT_EQ(link_between(devices[1], devices[4]).kind, LinkKind::numa) << "two cores";
  // A PCI hierarchy may begin at a part of a NUMA node.
  Device beside = devices[1];
  beside.bridges.clear();
  EXPECT_EQ(link_between(devices[0], beside).kind, LinkKind::numa);
  EXPECT_LT(link_between(devices[0], beside).bandwidth, link_between(devices[0], devices[1]).bandwidth);
  beside.host = "another";
  EXPECT_EQ(link_between(devices[0], beside).kind, LinkKind::network);
}

TEST(Mixed, NoCoresOfTheirOwnNoBridge) {
  const MachineFile file({.cpus = "package:2 [numa] core:2 pu:1", .gpus = {{0}, {1}}});
  const Topology topology = Topology::from_file(file.path());
  for (const auto& [binding, kind] : {std::pair{"0-3", LinkKind::host}, {"0-1", LinkKind::host_bridge}}) {
    const CoreShare oversubscribed = topology.share(std::vector<RankOnHost>{{binding, 4}}, 0);
    ASSERT_THAT(oversubscribed.worker_pus, IsEmpty());
    const std::vector<std::optional<Device>> gpus = {find_gpus(topology)[0], {}, {}, {}};
    const CoreShare share = near_gpus(topology, oversubscribed, gpus);
    EXPECT_THAT(share.worker_pus, IsEmpty());
    const auto devices = slot_devices(topology, share, gpus, 4);
    EXPECT_EQ(link_between(devices[0], devices[1]).kind, kind) << binding;
  }
}

TEST(Mixed, OfAFewIsTheBestAndKeepsKinds) {
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
      const double least = least_seconds(devices, traffic);
      EXPECT_NEAR(link_seconds(best, traffic), least, 1e-6 * least);
      improved += least < link_seconds(devices, traffic);
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

// ---- GPUs and cores of ranks ----

std::vector<std::vector<int>> numbers(const std::vector<std::vector<Device>>& places) {
  std::vector<std::vector<int>> all;
  for (const auto& rank : places) {
    auto& mine = all.emplace_back();
    for (const Device& gpu : rank) mine.push_back(gpu.number);
  }
  return all;
}

TEST(ShareGpus, RanksDivideThemByNearness) {
  const auto gpus = gpus_of({.gpus = {{0, 2, 4, 6}, {1, 3, 5, 7}}});
  const auto of = [&](const std::vector<int>& workers) {
    std::vector<RankWithGpus> ranks;
    for (const int count : workers) ranks.push_back({gpus, count});
    return numbers(divide_gpus(ranks));
  };
  EXPECT_THAT(of({8}), ElementsAre(ElementsAre(0, 1, 2, 3, 4, 5, 6, 7)));
  EXPECT_THAT(of({4, 4}), ElementsAre(ElementsAre(0, 2, 4, 6), ElementsAre(1, 3, 5, 7)));
  EXPECT_THAT(of({3, 2}), ElementsAre(ElementsAre(0, 2, 4), ElementsAre(1, 6)));
  EXPECT_THAT(of({2, 1}), ElementsAre(ElementsAre(0, 2), ElementsAre(4))) << "one node";
  EXPECT_THAT(of({16}), ElementsAre(ElementsAre(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7)));
}

TEST(ShareGpus, TheNearestOfThreeAndFour) {
  const auto gpus = gpus_of({.gpus = {{0, 1, 2}, {3, 4, 5, 6}}});
  EXPECT_THAT(numbers(divide_gpus(std::vector<RankWithGpus>{{gpus, 4}})),
              ElementsAre(ElementsAre(3, 4, 5, 6)));
}

TEST(ShareGpus, WhatALauncherGaveStays) {
  auto gpus = gpus_of({.gpus = {{0, 1}, {2, 3}}});
  // Each rank's CUDA counts from 0.
  std::vector<RankWithGpus> ranks;
  for (Device gpu : {gpus[3], gpus[1]}) {
    gpu.number = 0;
    ranks.push_back({{gpu}, 1});
  }
  const auto places = divide_gpus(ranks);
  EXPECT_EQ(places[0].front().pci, gpus[3].pci);
  EXPECT_EQ(places[1].front().pci, gpus[1].pci);
  EXPECT_THAT(divide_gpus(std::vector<RankWithGpus>{{{}, 2}}), ElementsAre(IsEmpty()));
}

TEST(NearCores, DriveGpusFromTheirNode) {
  const MachineFile file({.cpus = "package:2 [numa] core:3 pu:2", .gpus = {{0, 2}, {1, 3}}});
  const Topology topology = Topology::from_file(file.path());
  auto gpus = find_gpus(topology);
  std::ranges::sort(gpus, {}, &Device::number);
  EXPECT_THAT(near_cores(topology, "0-11", gpus), ElementsAre(0, 6, 2, 8)) << "first PUs of cores";
  EXPECT_THAT(near_cores(topology, "0-5,10-11", gpus), ElementsAre(0, 10, 2, 4)) << "one core near two GPUs";
  EXPECT_THAT(near_cores(topology, "0-3", gpus), IsEmpty()) << "too few";
}

TEST(WorkerMapOfSlots, FindsRanksAndBack) {
  const WorkerMap map(2, std::vector<int>{4, 0, 3, 1, 2});
  EXPECT_EQ(map.workers(), 5);
  EXPECT_EQ(map.count(0), 2);
  EXPECT_EQ(map.rank_of(1), 0);
  EXPECT_EQ(map.rank_of(3), 0);
  EXPECT_EQ(map.rank_of(0), 1);
  for (int worker = 0; worker < 5; ++worker) EXPECT_EQ(map.worker(map.slot(worker)), worker);
  EXPECT_THROW(WorkerMap(1, std::vector<int>{0, 0}), std::logic_error);
  EXPECT_THROW(WorkerMap(1, std::vector<int>{0, 2}), std::logic_error);
}

}  // namespace
}  // namespace starpipe::runtime
