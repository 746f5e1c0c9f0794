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

TEST(Links, RefuseGroupsThatDoNotNest) {
  const auto refusal = [](const std::vector<LinkLevel>& levels) {
    return message_of([&] { const Links links(levels); });
  };
  EXPECT_EQ(refusal({{.workers = 2}, {.workers = 4}, {}}), "");
  EXPECT_THAT(refusal({}), HasSubstr("the list of levels is empty"));
  EXPECT_THAT(refusal({{.workers = 1}, {}}), HasSubstr("level 0: a group of 1"));
  EXPECT_THAT(refusal({{.workers = 4}, {.workers = 6}, {}}), HasSubstr("level 1: 6 workers are not"));
  EXPECT_THAT(refusal({{.workers = 4}, {.workers = 4}, {}}), HasSubstr("level 1: 4 workers are not"));
  EXPECT_THAT(refusal({{.link = {.alpha = -1}}}), HasSubstr("alpha=-1"));
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

TEST(TransfersInFlight, ArriveAsInTheSlowReference) {
  testing::Random random(1);
  for (int round = 0; round < rounds(1500) && !HasFailure(); ++round) {
    const int workers_of_rank = testing::chance(random, 0.5) ? 1 : 5;
    const Links links = testing::random_links(
        random, workers_of_rank == 1 ? testing::every_sharing : testing::sharing_within_ranks);
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
