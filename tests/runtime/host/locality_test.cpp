// SPDX-License-Identifier: Apache-2.0
// Where cores and GPUs are on machines that the test makes up, as hwloc tells it, and which cores are near
// GPUs.
#include "runtime/host/locality.hpp"

#include <algorithm>
#include <optional>

#include <gmock/gmock.h>

#include "runtime/host/hardware.hpp"
#include "runtime/host/machines.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::runtime {
namespace {

using namespace testing;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

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

TEST(Slots, CoresAreNearTheGpusOfTheirPartOfTheMachine) {
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

TEST(Slots, NoCoresOfTheirOwnNoBridge) {
  const MachineFile file({.cpus = "package:2 [numa] core:2 pu:1", .gpus = {{0}, {1}}});
  const Topology topology = Topology::from_file(file.path());
  for (const auto& [binding, kind] : {std::pair{"0-3", LinkKind::host}, {"0-1", LinkKind::host_bridge}}) {
    const CoreShare too_few_cores = topology.share(std::vector<RankOnHost>{{binding, 5}}, 0);
    ASSERT_THAT(too_few_cores.worker_pus, IsEmpty());
    const std::vector<std::optional<Device>> gpus = {find_gpus(topology)[0], {}, {}, {}, {}};
    const CoreShare share = near_gpus(topology, too_few_cores, gpus);
    EXPECT_THAT(share.worker_pus, IsEmpty());
    const auto devices = slot_devices(topology, share, gpus, 5);
    EXPECT_EQ(link_between(devices[0], devices[1]).kind, kind) << binding;
  }
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

}  // namespace
}  // namespace starpipe::runtime
