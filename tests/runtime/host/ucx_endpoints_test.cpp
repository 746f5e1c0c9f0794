// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "runtime/host/ucx.hpp"

namespace starpipe::runtime {
namespace {

// Texts of UCX 1.13.
TEST(UcxEndpoint, OverTcp) {
  const UcxEndpoint endpoint = read_endpoint(
      "# UCP endpoint \n#\n"
      "#               peer: <no debug data>\n"
      "#                 lane[0]:  2:tcp/e2.0 md[1]                -> md[1]/tcp/sysdev[255] rma_bw#0 am "
      "am_bw#0 wireup\n"
      "#                tag_send: 0..<egr/short>..8185..<egr/zcopy>..19522..<rndv>..(inf)\n"
      "#                  rma_bw: mds [1] rndv_rkey_size 10\n");
  EXPECT_TRUE(endpoint.is_tcp);
  EXPECT_FALSE(endpoint.is_self);
  EXPECT_EQ(endpoint.text, "TCP (e2)");
}

TEST(UcxEndpoint, NamesTheDeviceThatCarriesMessages) {
  const UcxEndpoint endpoint = read_endpoint(
      "# lane[0]:  2:tcp/eth0.100.0 md[1] -> md[1]/tcp/sysdev[255] rma_bw#0 am am_bw#0\n"
      "# lane[1]:  1:tcp/lo.0 md[1] -> md[1]/tcp/sysdev[255] rma_bw#1 wireup");
  EXPECT_EQ(endpoint.text, "TCP (eth0.100)");
}

TEST(UcxEndpoint, InSharedMemory) {
  const UcxEndpoint endpoint = read_endpoint(
      "# lane[0]:  3:sysv/memory.0 md[2]           -> md[2]/sysv/sysdev[255] am am_bw#0\n"
      "# lane[1]:  4:posix/memory.0 md[3]          -> md[3]/posix/sysdev[255]\n"
      "# lane[2]:  5:cma/memory.0 md[4]            -> md[4]/cma/sysdev[255] rma_bw#0\n");
  EXPECT_FALSE(endpoint.is_tcp);
  EXPECT_EQ(endpoint.text, "shared memory (cma, posix, sysv)");
}

TEST(UcxEndpoint, ToThisRank) {
  const UcxEndpoint endpoint = read_endpoint(
      "# lane[0]:  0:self/memory0.0 md[0] -> md[0]/self/sysdev[255] am am_bw#0\n"
      "# lane[1]:  1:tcp/e1.0 md[1] -> md[1]/tcp/sysdev[255] rma_bw#0\n");
  EXPECT_TRUE(endpoint.is_self);
  EXPECT_FALSE(endpoint.is_tcp);
}

TEST(UcxEndpoint, OverOtherDevices) {
  EXPECT_EQ(
      read_endpoint("# lane[0]: 6:rc_mlx5/mlx5_0:1.0 md[4] -> md[4]/ib/sysdev[0] rma_bw#0 am am_bw#0\n").text,
      "rc_mlx5 (mlx5_0:1)");
}

TEST(UcxEndpoint, TextsOfOtherVersionsSayNothing) {
  for (const char* text : {"", "\n", "lane[", "lane[0]: tcp", "lane[0]: 1:tcp", "# endpoint\n# 1: 2:3/4\n"}) {
    EXPECT_EQ(read_endpoint(text).text, "") << text;
    EXPECT_FALSE(read_endpoint(text).is_tcp) << text;
  }
}

}  // namespace
}  // namespace starpipe::runtime
