// SPDX-License-Identifier: Apache-2.0
// Links of several levels and transfers that share them: by hand, and against a slow reference that knows
// all transfers at all times.
#include "starpipe/plan/simulate/links.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/simulate/slow_transfers.hpp"
#include "plan/simulate/transfers_in_flight.hpp"
#include "plan/slow_reference.hpp"
#include "starpipe/base/index.hpp"
#include "support/message_of.hpp"
#include "support/random_schedules.hpp"
#include "support/rounds.hpp"

namespace starpipe::plan {
namespace {

using ::testing::DoubleEq;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Links machine(Sharing sharing) {
  return Links({{.name = "group", .workers = 2, .link = {.alpha = 1, .beta = 1}, .sharing = sharing},
                {.name = "node", .workers = 4, .link = {.alpha = 2, .beta = 2}, .sharing = sharing},
                {.name = "network", .link = {.alpha = 3, .beta = 4}, .sharing = sharing}});
}

TEST(Links, TheInnermostLevelThatHasBothWorkersConnectsThem) {
  const Links links = machine(Sharing::none);
  EXPECT_EQ(links.between(0, 1).alpha, 1);
  EXPECT_EQ(links.between(1, 2).alpha, 2);
  EXPECT_EQ(links.between(3, 0).alpha, 2);
  EXPECT_EQ(links.between(3, 4).alpha, 3);
  EXPECT_EQ(links.between(100, 1).alpha, 3);
  EXPECT_EQ(links.member(0, 5), 5);
  EXPECT_EQ(links.member(1, 5), 2);
  EXPECT_EQ(links.member(2, 5), 1);
  EXPECT_EQ(links.cheapest(), (Link{.alpha = 1, .beta = 1}));
  EXPECT_FALSE(links.uniform());
  EXPECT_FALSE(links.shared());
  EXPECT_TRUE(machine(Sharing::fair).shared());
  EXPECT_TRUE(Links(Link{.alpha = 1}).uniform());
  EXPECT_FALSE(Links().takes_time());
  EXPECT_EQ(Links().between(0, 1).time(7), 0);
}

std::string refusal_of_levels(const std::vector<LinkLevel>& levels) {
  return message_of([&] { const Links links(levels); });
}

TEST(Links, RefuseGroupsThatDoNotNest) {
  EXPECT_EQ(refusal_of_levels({{.workers = 2}, {.workers = 4}, {}}), "");
  EXPECT_THAT(refusal_of_levels({}), HasSubstr("the list of levels is empty"));
  EXPECT_THAT(refusal_of_levels({{.workers = 1}, {}}), HasSubstr("level 0: a group of 1"));
  EXPECT_THAT(refusal_of_levels({{.workers = 4}, {.workers = 6}, {}}),
              HasSubstr("level 1: 6 workers are not"));
  EXPECT_THAT(refusal_of_levels({{.workers = 4}, {.workers = 4}, {}}),
              HasSubstr("level 1: 4 workers are not"));
  EXPECT_THAT(refusal_of_levels({{.link = {.alpha = -1}}}), HasSubstr("alpha=-1"));
}

TEST(Link, InterpolatesItsTable) {
  const Link link{.alpha = 1, .beta = 2, .times = {{10, 3}, {20, 13}}};
  EXPECT_EQ(link.time(0), 1);
  EXPECT_EQ(link.time(5), 2);
  EXPECT_EQ(link.time(10), 3);
  EXPECT_EQ(link.time(12), 5);
  EXPECT_EQ(link.time(20), 13);
  EXPECT_EQ(link.time(25), 23);
  EXPECT_EQ(link.slowed(3).time(12), 13);
  EXPECT_EQ(link.slowed(3).time(25), 67);
  EXPECT_TRUE((Link{.times = {{1, 1}}}).takes_time());
  EXPECT_FALSE((Link{.alpha = 1, .times = {{1, 1}}}).has_bandwidth());
}

TEST(Link, RefusesAWrongTable) {
  const auto table = [](std::vector<LinkTime> times) {
    return refusal_of_levels({{.link = {.alpha = 2, .beta = 1, .times = std::move(times)}}});
  };
  for (const auto& times : std::vector<std::vector<LinkTime>>{
           {{0, 3}}, {{5, 3}, {5, 4}}, {{5, 3}, {4, 4}}, {{5, 1}}, {{5, 3}, {6, 2}}, {{5, std::nan("")}}})
    EXPECT_THAT(table(times), HasSubstr("the times of a table must ascend"));
}

TEST(Links, OwnBandwidthOfAPort) {
  const Links links({{.workers = 2, .link = {.alpha = 1, .beta = 1}},
                     {.link = {.alpha = 2, .beta = 2, .times = {{10, 2}}}, .ports = {{0, 1}, {2, 6}}}});
  EXPECT_EQ(links.between(4, 5).time(5), 6);
  EXPECT_EQ(links.between(2, 6).time(15), 12);  // node 1 to node 3
  EXPECT_EQ(links.between(2, 4).time(15), 32);  // node 2 is slow, in and out
  EXPECT_EQ(links.between(5, 0).time(15), 32);
  EXPECT_EQ(links.between(0, 3).time(15), 12);                 // node 0 is fast, node 1 is not
  EXPECT_EQ(links.cheapest(), (Link{.alpha = 1, .beta = 0}));  // the first bytes of the table take no time
  EXPECT_FALSE(Links({{.link = {.beta = 2}, .ports = {{0, 1}}}}).uniform());
}

TEST(Links, RefuseWrongPorts) {
  const auto ports = [](std::vector<LinkPort> list, double beta = 1) {
    return refusal_of_levels({{.link = {.beta = beta}, .ports = std::move(list)}});
  };
  EXPECT_THAT(ports({{-1, 1}}), HasSubstr("members 0 or more, in ascending order"));
  EXPECT_THAT(ports({{1, 1}, {1, 2}}), HasSubstr("ascending order"));
  EXPECT_THAT(ports({{1, 0}}), HasSubstr("a port's bandwidth must be finite"));
  EXPECT_THAT(ports({{1, 1}}, 0), HasSubstr("a port's bandwidth must be finite"));
}

/// Returns the time at which each transfer arrives. `sent`: in the order of their times.
std::vector<double> arrivals(const Links& links, const std::vector<testing::Sent>& sent,
                             int workers_of_rank = 1, bool ordered_messages = false) {
  TransfersInFlight in_flight(links, workers_of_rank, ordered_messages);
  std::vector<double> times(sent.size(), -1);
  const auto advance = [&](double until) {
    while (in_flight.next() <= until && in_flight.next() < TransfersInFlight::never) {
      const double now = in_flight.next();
      std::vector<std::uint32_t> arrived;
      in_flight.advance(now, arrived);
      for (const std::uint32_t number : arrived) times[number] = now;
    }
  };
  for (std::size_t i = 0; i < sent.size(); ++i) {
    advance(std::nextafter(sent[i].at, -1));
    in_flight.begin(sent[i].at, sent[i].from, sent[i].to, sent[i].bytes, static_cast<std::uint32_t>(i));
  }
  advance(std::numeric_limits<double>::max());
  return times;
}

// Latency 1, then 1 for each byte.
Links one_level(Sharing sharing) { return Links({{.link = {.alpha = 1, .beta = 1}, .sharing = sharing}}); }

TEST(TransfersInFlight, WithoutSharingDelayNobody) {
  EXPECT_THAT(arrivals(one_level(Sharing::none), {{0, 0, 1, 4}, {0, 0, 1, 4}, {0, 2, 1, 2}}),
              ElementsAre(5, 5, 3));
}

TEST(TransfersInFlight, InOrderWaitForBothPorts) {
  const Links links = one_level(Sharing::in_order);
  // Both leave worker 0; their latencies overlap.
  EXPECT_THAT(arrivals(links, {{0, 0, 1, 4}, {0, 0, 2, 2}}), ElementsAre(5, 7));
  // Both arrive at worker 2.
  EXPECT_THAT(arrivals(links, {{0, 0, 2, 4}, {0, 1, 2, 2}}), ElementsAre(5, 7));
  // The third waits for the first at its sender, and the fourth waits for the third at its receiver, although
  // its own sender is free: first come, first served at each port.
  EXPECT_THAT(arrivals(links, {{0, 0, 1, 4}, {0, 3, 4, 1}, {1, 0, 2, 1}, {2, 5, 2, 1}}),
              ElementsAre(5, 2, 6, 7));
  // A port in and a port out are two: the way back is free.
  EXPECT_THAT(arrivals(links, {{0, 0, 1, 4}, {0, 1, 0, 4}}), ElementsAre(5, 5));
}

TEST(TransfersInFlight, FairShareTheBandwidth) {
  const Links links = one_level(Sharing::fair);
  // Half the bandwidth each while both are under way: 2 bytes each until 5, then the first is alone.
  EXPECT_THAT(arrivals(links, {{0, 0, 1, 4}, {0, 0, 2, 2}}), ElementsAre(7, 5));
  // The second begins when the first has 2 of its 4 bytes left.
  EXPECT_THAT(arrivals(links, {{0, 0, 1, 4}, {2, 0, 1, 4}}), ElementsAre(7, 9));
  // Two to worker 3 get half each. What is left of worker 0's port out goes to its other transfer: half.
  EXPECT_THAT(arrivals(links, {{0, 0, 3, 2}, {0, 1, 3, 2}, {0, 0, 2, 2}}), ElementsAre(5, 5, 5));
  // Three to worker 3 get a third each, so worker 0's other transfer gets two thirds.
  EXPECT_THAT(arrivals(links, {{0, 0, 3, 2}, {0, 1, 3, 2}, {0, 2, 3, 2}, {0, 0, 4, 4}}), Each(DoubleEq(7)));
  EXPECT_THAT(arrivals(links, {{0, 0, 1, 4}, {0, 1, 0, 4}}), ElementsAre(5, 5));
}

TEST(TransfersInFlight, PassAPortAtItsOwnRate) {
  const auto links = [](Sharing sharing) {
    return Links({{.link = {.alpha = 1, .beta = 1}, .sharing = sharing, .ports = {{2, 4}}}});
  };
  for (const Sharing sharing : {Sharing::none, Sharing::in_order, Sharing::fair})
    EXPECT_THAT(arrivals(links(sharing), {{0, 0, 1, 4}, {0, 3, 2, 4}}), ElementsAre(5, 17));
  // In order the slow port keeps its sender.
  EXPECT_THAT(arrivals(links(Sharing::in_order), {{0, 0, 2, 2}, {0, 0, 1, 2}}), ElementsAre(9, 11));
  // Fair: the slow port takes a quarter of its sender's bandwidth, and leaves the rest to the other transfer.
  EXPECT_THAT(arrivals(links(Sharing::fair), {{0, 0, 2, 2}, {0, 0, 1, 3}}), ElementsAre(9, 5));
  EXPECT_THAT(arrivals(links(Sharing::fair), {{0, 2, 0, 2}, {0, 2, 1, 2}}), ElementsAre(17, 17));
}

TEST(TransfersInFlight, TakeTheTimeOfTheTable) {
  for (const Sharing sharing : {Sharing::none, Sharing::in_order, Sharing::fair}) {
    const Links links({{.link = {.alpha = 1, .beta = 4, .times = {{2, 2}}}, .sharing = sharing}});
    EXPECT_THAT(arrivals(links, {{0, 0, 1, 2}, {0, 2, 3, 4}}), ElementsAre(2, 10));
  }
  const Links links({{.link = {.alpha = 1, .beta = 4, .times = {{2, 2}}}, .sharing = Sharing::in_order}});
  EXPECT_THAT(arrivals(links, {{0, 0, 1, 2}, {0, 0, 2, 4}}), ElementsAre(2, 11));
}

TEST(TransfersInFlight, ShareThePortsOfTheirOwnLevelOnly) {
  for (const Sharing sharing : {Sharing::in_order, Sharing::fair}) {
    // 0 to 1 within a group, 0 to 2 between groups, 0 to 4 between nodes: nothing is shared.
    EXPECT_THAT(arrivals(machine(sharing), {{0, 0, 1, 1}, {0, 0, 2, 1}, {0, 0, 4, 1}}), ElementsAre(2, 4, 7));
  }
  // 0 and 3 leave their node through one port.
  EXPECT_THAT(arrivals(machine(Sharing::in_order), {{0, 0, 4, 1}, {0, 3, 8, 1}}), ElementsAre(7, 11));
  EXPECT_THAT(arrivals(machine(Sharing::fair), {{0, 0, 4, 1}, {0, 3, 8, 1}}), ElementsAre(11, 11));
}

TEST(TransfersInFlight, FromOneWorkerToAnotherOfItsRankFollowEachOther) {
  // Latency and bytes: the second begins when the first has arrived. The way back, another receiver and
  // another rank are other streams.
  for (const Sharing sharing : {Sharing::none, Sharing::in_order, Sharing::fair}) {
    EXPECT_THAT(arrivals(one_level(sharing), {{0, 0, 1, 4}, {0, 0, 1, 2}, {0, 1, 0, 2}}, 4),
                ElementsAre(5, 8, 3));
  }
  EXPECT_THAT(arrivals(one_level(Sharing::none), {{0, 0, 1, 4}, {0, 0, 2, 2}, {0, 0, 4, 2}, {0, 0, 4, 2}}, 4),
              ElementsAre(5, 3, 3, 3));
  // Bytes are not needed for it.
  EXPECT_THAT(arrivals(one_level(Sharing::none), {{0, 0, 1, 0}, {0, 0, 1, 0}, {5, 0, 1, 0}}, 2),
              ElementsAre(1, 2, 6));
}

TEST(TransfersInFlight, OrderedMessagesFromOneRankToAnotherFollowEachOther) {
  const Links links = one_level(Sharing::fair);
  // The bytes follow each other, the latencies overlap.
  EXPECT_THAT(arrivals(links, {{0, 0, 2, 4}, {0, 1, 3, 2}}, 2, true), ElementsAre(5, 7));
  EXPECT_THAT(arrivals(links, {{0, 0, 1, 4}, {7, 0, 1, 4}}, 1, true), ElementsAre(5, 12));
  // Connections share a port fairly: the second to worker 2 waits for the first alone.
  EXPECT_THAT(arrivals(links, {{0, 0, 2, 2}, {0, 0, 2, 2}, {0, 1, 2, 4}}, 1, true), ElementsAre(5, 9, 9));
  // Other links have no connections.
  EXPECT_THAT(arrivals(one_level(Sharing::none), {{0, 0, 1, 4}, {0, 0, 1, 4}}, 1, true), ElementsAre(5, 5));
}

Links with_ports_and_tables(testing::Random& random, const Links& links) {
  std::vector<LinkLevel> levels = links.levels();
  for (LinkLevel& level : levels) {
    const double first = level.link.alpha + testing::between(random, 0, 4) / 4.0;
    if (testing::chance(random, 0.5)) level.link.times = {{2, first}, {3, first + 1}};
    if (level.link.beta == 0) continue;
    for (int member = 0; member < 4; ++member) {
      if (testing::chance(random, 0.3))
        level.ports.push_back({member, level.link.beta * testing::between(random, 1, 8) / 4.0});
    }
  }
  return Links(std::move(levels));
}

TEST(TransfersInFlight, ArriveAsInTheSlowReference) {
  testing::Random random(1);
  for (int round = 0; round < rounds(1500) && !HasFailure(); ++round) {
    const int workers_of_rank = testing::chance(random, 0.5) ? 1 : 5;
    Links links = testing::random_links(
        random, workers_of_rank == 1 ? testing::every_sharing : testing::sharing_within_ranks);
    if (testing::chance(random, 0.5)) links = with_ports_and_tables(random, links);
    std::vector<testing::Sent> sent(index(testing::between(random, 1, 14)));
    for (testing::Sent& transfer : sent) {
      transfer.at = testing::between(random, 0, 12) / 4.0;
      transfer.from = testing::between(random, 0, 9);
      transfer.to = (transfer.from + testing::between(random, 1, 9)) % 10;
      transfer.bytes = static_cast<std::uint64_t>(testing::between(random, 0, 6));
    }
    std::ranges::stable_sort(sent, {}, &testing::Sent::at);
    const bool ordered = testing::chance(random, 0.5);
    const std::vector<double> fast = arrivals(links, sent, workers_of_rank, ordered);
    const std::vector<double> slow = testing::slow_arrivals(links, sent, workers_of_rank, ordered);
    for (std::size_t i = 0; i < sent.size(); ++i) {
      EXPECT_NEAR(fast[i], slow[i], 1e-6) << "round " << round << ", transfer " << i << " of " << sent.size();
    }
  }
}

}  // namespace
}  // namespace starpipe::plan
