// SPDX-License-Identifier: Apache-2.0
#include "runtime/report/measured_links.hpp"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

TEST(MeasuredLinks, ALineWhereItFits) {
  const plan::Link link{.alpha = 2e-6, .beta = 1e-9};
  const plan::Link found = link_of(pings_of(link), 1.05e-9);
  EXPECT_TRUE(found.times.empty());
  EXPECT_NEAR(found.beta, link.beta, 1e-12);
  // Both directions at once are slower than one.
  EXPECT_NEAR(link_of(pings_of(link), 2e-9).beta, 2e-9, 1e-12);
  EXPECT_NEAR(link_of(pings_of(link), 2e-9).alpha, link.alpha, 1e-9);
}

TEST(MeasuredLinks, ATableWhereALineIsOff) {
  // The first 16 KiB after a pause pass at full speed.
  const plan::Link burst{.alpha = 15e-6, .beta = 1 / 23.9e6, .times = {{16384, 30e-6}}};
  const plan::Link found = link_of(pings_of(burst), burst.beta);
  EXPECT_LE(largest_deviation(found, pings_of(burst)), 0.03);
  EXPECT_NEAR(found.beta, burst.beta, 0.01 * burst.beta);
  EXPECT_NEAR(found.alpha, burst.alpha, 1e-6);
  EXPECT_LE(found.times.size(), 3U);
  // Half duplex.
  const plan::Link half = link_of(pings_of(burst), 2 * burst.beta);
  EXPECT_NEAR(half.time(1 << 20), 2 * burst.time(1 << 20), 0.03 * burst.time(1 << 20));
  // Times that do not ascend make a table that does.
  const std::vector<Ping> odd = {{1, 5e-6}, {1000, 4e-6}, {4000, 9e-6}, {16000, 8e-6}, {64000, 1e-3}};
  EXPECT_NO_THROW(plan::Links({{.link = link_of(odd, 1e-9)}}));
}

TEST(MeasuredLinks, SharingByTwoMessagesAtOnce) {
  const auto sharing = [](double first, double last) {
    return sharing_of(std::vector<SharedPort>{{.first = first, .last = last}});
  };
  EXPECT_EQ(sharing(1, 1), plan::Sharing::none);
  EXPECT_EQ(sharing(1.1, 1.25), plan::Sharing::none);
  EXPECT_EQ(sharing(1, 2), plan::Sharing::in_order);
  EXPECT_EQ(sharing(1.9, 2), plan::Sharing::fair);
  EXPECT_EQ(sharing(1.6, 2), plan::Sharing::fair);
  // The port in is shared, the port out is not.
  EXPECT_EQ(
      sharing_of(std::vector<SharedPort>{{.out = true, .first = 1, .last = 1}, {.first = 1.9, .last = 2}}),
      plan::Sharing::fair);
}

TEST(MeasuredLinks, ThePortThatMakesItsPairsSlow) {
  std::vector<MeasuredPair> pairs = pairs_to_measure(std::vector<std::string>{"a", "b", "c", "d"}, 8);
  ASSERT_THAT(pairs, SizeIs(4));
  for (MeasuredPair& pair : pairs) pair.both_ways = pair.first == 2 || pair.second == 2 ? 4e-8 : 1e-8;
  const PortBandwidths found = port_bandwidths(pairs, 1);
  EXPECT_DOUBLE_EQ(found.beta, 1e-8);
  EXPECT_THAT(found.others, ElementsAre(plan::LinkPort{2, 4e-8}));
  EXPECT_THAT(port_bandwidths(std::vector{pairs[1]}, 1).others, SizeIs(0));
}

// Returns the pairs as they are measured over these links.
std::vector<MeasuredPair> measured_over(std::vector<MeasuredPair> pairs, int per_host, const plan::Link& near,
                                        const plan::Link& far) {
  for (MeasuredPair& pair : pairs) {
    const plan::Link& link = pair.first / per_host == pair.second / per_host ? near : far;
    pair.pings = pings_of(link);
    pair.both_ways = link.beta;
  }
  return pairs;
}
const std::vector<SharedPort> shared_ports = {{.between_hosts = false, .first = 1, .last = 1},
                                              {.between_hosts = true, .first = 2, .last = 2}};

TEST(MeasuredLinks, HostsMakeTheLevels) {
  const plan::Link near{.alpha = 1e-6, .beta = 1e-10};
  const plan::Link far{.alpha = 9e-6, .beta = 8e-10};
  const std::vector<std::string> hosts = {"a", "a", "b", "b"};
  const std::vector<MeasuredPair> pairs = measured_over(pairs_to_measure(hosts, 100), 2, near, far);
  EXPECT_THAT(pairs, SizeIs(3));
  const plan::Links links = links_of(hosts, pairs, shared_ports).links;
  ASSERT_THAT(links.levels(), SizeIs(2));
  EXPECT_EQ(links.levels()[0].workers, 2);
  EXPECT_EQ(links.levels()[0].sharing, plan::Sharing::none);
  EXPECT_EQ(links.levels()[1].sharing, plan::Sharing::fair);
  EXPECT_NEAR(links.between(0, 1).alpha, near.alpha, 1e-12);
  EXPECT_NEAR(links.between(1, 2).alpha, far.alpha, 1e-12);
  EXPECT_NEAR(links.between(0, 3).beta, far.beta, 1e-16);

  EXPECT_EQ(links_of(std::vector<std::string>{"a", "a"}, std::vector{pairs[0]}, shared_ports)
                .links.levels()[0]
                .name,
            "node");
  EXPECT_EQ(links_of(std::vector<std::string>{"a", "b"}, std::vector{pairs[0]}, shared_ports)
                .links.levels()[0]
                .name,
            "network");
}

TEST(MeasuredLinks, NotesNameWhatTheFileCannotSay) {
  const plan::Link link{.alpha = 9e-6, .beta = 1e-8};
  const std::vector<std::string> hosts = {"a", "b", "c", "d"};
  std::vector<MeasuredPair> pairs = measured_over(pairs_to_measure(hosts, 8), 1, link, link);
  for (MeasuredPair& pair : pairs) {
    if (pair.first == 2 || pair.second == 2) pair.both_ways = 4e-8;
  }
  pairs[0].at_once = 1.5;
  const MeasuredLinks found = links_of(hosts, pairs, shared_ports);
  EXPECT_THAT(found.links.levels()[0].ports, ElementsAre(plan::LinkPort{2, 4e-8}));
  const std::string notes = ::testing::PrintToString(found.notes);
  EXPECT_THAT(notes, HasSubstr("host c (member 2) has 25 MB/s, 0.25 times the others' 100 MB/s"));
  EXPECT_THAT(notes, HasSubstr("took 1.50 times as long at once as alone"));
  for (MeasuredPair& pair : pairs) pair.both_ways = 2e-8;
  EXPECT_THAT(::testing::PrintToString(links_of(hosts, pairs, shared_ports).notes),
              HasSubstr("one direction alone carries 100 MB/s"));
}

TEST(MeasuredLinks, RefuseWhatWasNotSeen) {
  const plan::Link link{.alpha = 9e-6, .beta = 1e-8};
  const std::vector<std::string> hosts = {"a", "a", "b", "b"};
  const std::vector<MeasuredPair> pairs = measured_over(pairs_to_measure(hosts, 8), 2, link, link);
  const auto problem = [&](const std::vector<MeasuredPair>& some, const std::vector<SharedPort>& ports,
                           const char* part) {
    EXPECT_THAT([&] { links_of(hosts, some, ports); }, ThrowsMessage<InputError>(HasSubstr(part)));
  };
  problem({pairs[0], pairs[1]}, shared_ports, "network: no pair of ranks was measured within 30 s");
  problem({pairs[2]}, shared_ports, "node: no pair of ranks was measured");
  problem(pairs, {shared_ports[0]}, "network: two messages at once were not measured");
  std::vector<MeasuredPair> without = pairs;
  without[2].pings.clear();
  problem(without, shared_ports, "network: no pair of ranks was measured");
}

TEST(MeasuredLinks, MeasureSomePairsOfEachLevel) {
  std::vector<std::string> hosts;
  for (const char* host : {"a", "b", "c"}) hosts.insert(hosts.end(), 8, host);
  int within = 0;
  for (const MeasuredPair& pair : pairs_to_measure(hosts, 8))
    within += pair.first / 8 == pair.second / 8 ? 1 : 0;
  EXPECT_EQ(within, 8);
  EXPECT_THAT(pairs_to_measure(hosts, 8), SizeIs(11));
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
