// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/report/info.hpp"
#include "starpipe/base/error.hpp"

namespace starpipe::runtime {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::ThrowsMessage;

std::vector<Ping> pings_of(const plan::Link& link) {
  std::vector<Ping> pings;
  for (const std::uint64_t bytes : {1U, 1U << 10U, 1U << 16U, 1U << 23U})
    pings.push_back({bytes, link.time(bytes)});
  return pings;
}

TEST(MeasuredLinks, FitOfExactTimesIsExact) {
  const plan::Link link{.alpha = 2e-6, .beta = 1e-10};
  const plan::Link fitted = fitted_link(pings_of(link));
  EXPECT_NEAR(fitted.alpha, link.alpha, 1e-12);
  EXPECT_NEAR(fitted.beta, link.beta, 1e-16);
  EXPECT_NEAR(largest_deviation(fitted, pings_of(link)), 0, 1e-6);
  std::vector<Ping> one_late = pings_of(link);
  one_late.front().time *= 1.1;
  EXPECT_THAT(largest_deviation(link, one_late), DoubleNear(1 - 1 / 1.1, 1e-6));
}

TEST(MeasuredLinks, FitHasNoNegativeParts) {
  const std::vector<Ping> no_latency = {{1000, 1e-6}, {2000, 3e-6}};
  EXPECT_EQ(fitted_link(no_latency).alpha, 0);
  EXPECT_GT(fitted_link(no_latency).beta, 1e-9);
  const std::vector<Ping> faster = {{1, 2e-6}, {1000, 1e-6}};
  EXPECT_EQ(fitted_link(faster).beta, 0);
  EXPECT_GT(fitted_link(faster).alpha, 1e-6);
}

TEST(MeasuredLinks, HostsMakeTheLevels) {
  const plan::Link near{.alpha = 1e-6, .beta = 1e-10};
  const plan::Link far{.alpha = 9e-6, .beta = 8e-10};
  const std::vector<std::string> hosts = {"a", "a", "b", "b"};
  std::vector<MeasuredPair> pairs = pairs_to_measure(hosts, 100);
  EXPECT_THAT(pairs, SizeIs(6));
  for (MeasuredPair& pair : pairs) pair.pings = pings_of(pair.first / 2 == pair.second / 2 ? near : far);
  const plan::Links links = links_of(hosts, pairs).links;
  ASSERT_THAT(links.levels(), SizeIs(2));
  EXPECT_EQ(links.levels()[0].workers, 2);
  EXPECT_NEAR(links.between(0, 1).alpha, near.alpha, 1e-12);
  EXPECT_NEAR(links.between(1, 2).alpha, far.alpha, 1e-12);
  EXPECT_NEAR(links.between(0, 3).beta, far.beta, 1e-16);

  EXPECT_EQ(links_of(std::vector<std::string>{"a", "a"}, std::vector{pairs[0]}).links.levels()[0].name,
            "node");
  EXPECT_EQ(links_of(std::vector<std::string>{"a", "b"}, std::vector{pairs[0]}).links.levels()[0].name,
            "network");
}

TEST(MeasuredLinks, MeasureSomePairsOfEachLevel) {
  std::vector<std::string> hosts;
  for (const char* host : {"a", "b", "c"}) hosts.insert(hosts.end(), 8, host);
  int within = 0;
  for (const MeasuredPair& pair : pairs_to_measure(hosts, 8))
    within += pair.first / 8 == pair.second / 8 ? 1 : 0;
  EXPECT_EQ(within, 8);
  EXPECT_THAT(pairs_to_measure(hosts, 8), SizeIs(16));
}

TEST(MeasuredLinks, TellHostsApartByNameAndId) {
  // Virtual nodes have one id, containers on two hosts may have one name.
  EXPECT_THAT(distinct_hosts({"n1", "n1", "n2"}, {"x", "x", "x"}), ElementsAre("n1", "n1", "n2"));
  EXPECT_THAT(distinct_hosts({"n", "n", "m"}, {"x", "y", "y"}), ElementsAre("n (x)", "n (y)", "m"));
}

TEST(MeasuredLinks, RefuseRanksThatMakeNoLevels) {
  const auto problem = [](const std::vector<std::string>& hosts, const char* part) {
    EXPECT_THAT([&] { pairs_to_measure(hosts, 8); }, ThrowsMessage<InputError>(HasSubstr(part)));
  };
  problem({"a"}, "two ranks or more");
  problem({"a", "b", "a", "b"}, "the ranks on host a are not consecutive");
  problem({"a", "a", "b"}, "2 ranks on host a, but 1 on b");
}

}  // namespace
}  // namespace starpipe::runtime
