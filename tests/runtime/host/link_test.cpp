// SPDX-License-Identifier: Apache-2.0
// The links between GPUs, of one rank and of several.
#include <limits>

#include <gmock/gmock.h>

#include "runtime/host/hardware.hpp"
#include "runtime/host/machines.hpp"

namespace starpipe::runtime {
namespace {

using namespace testing;
using ::testing::SizeIs;

TEST(Links, FollowFromThePciHierarchy) {
  const auto gpus = gpus_of({.gpus = {{0, 1, 2, 3}, {4, 5}}});
  EXPECT_EQ(link_between(gpus[0], gpus[0]).kind, LinkKind::same);
  EXPECT_EQ(link_between(gpus[0], gpus[1]).kind, LinkKind::pcie_switch);
  EXPECT_EQ(link_between(gpus[0], gpus[2]).kind, LinkKind::host_bridge);
  EXPECT_EQ(link_between(gpus[0], gpus[4]).kind, LinkKind::host);
  Device elsewhere = gpus[0];
  elsewhere.host = "another";
  EXPECT_EQ(link_between(gpus[0], elsewhere).kind, LinkKind::network) << "same address, other host";
  double before = std::numeric_limits<double>::infinity();
  for (const DeviceLink& link : {link_between(gpus[0], gpus[1]), link_between(gpus[0], gpus[2]),
                                 link_between(gpus[0], gpus[4]), link_between(gpus[0], elsewhere)}) {
    EXPECT_LT(link.bandwidth, before) << to_string(link.kind);
    before = link.bandwidth;
  }
}

TEST(Links, AreSlowerBetweenRanks) {
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

TEST(Links, NvlinksHaveTheirBandwidth) {
  const auto gpus = gpus_of(cube_mesh());
  ASSERT_THAT(gpus, SizeIs(8));
  EXPECT_EQ(link_between(gpus[0], gpus[4]).kind, LinkKind::nvlink) << "across sockets, yet near";
  EXPECT_DOUBLE_EQ(link_between(gpus[0], gpus[4]).bandwidth, 50);
  EXPECT_DOUBLE_EQ(link_between(gpus[1], gpus[0]).bandwidth, 25);
  EXPECT_EQ(link_between(gpus[0], gpus[5]).kind, LinkKind::host);
}

}  // namespace
}  // namespace starpipe::runtime
