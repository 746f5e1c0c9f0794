// SPDX-License-Identifier: Apache-2.0
// Weights that several ranks read, passed on from rank to rank.
#include "plan/simulate/relays.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/simulate/shared_transfers.hpp"
#include "plan/simulate/slow_transfers.hpp"
#include "plan/simulate/transfers_in_flight.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/simulate/simulate.hpp"
#include "starpipe/plan/simulate/transfers.hpp"
#include "support/random_schedules.hpp"
#include "support/rounds.hpp"

namespace starpipe::plan {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::uint64_t segment = std::uint64_t{128} << 10;

TEST(RelayPlan, ThreeReadersPassAThirdOnToEachOther) {
  EXPECT_THAT(relay_plan(1, std::vector{0, 2, 3}, 3 * segment),
              ElementsAre(RelayStep{0, 1, 2, 0, segment}, RelayStep{0, 2, 3, 0, segment},
                          RelayStep{0, 2, 0, 0, segment}, RelayStep{1, 1, 3, segment, segment},
                          RelayStep{1, 3, 0, segment, segment}, RelayStep{1, 3, 2, segment, segment},
                          RelayStep{2, 1, 0, 2 * segment, segment}, RelayStep{2, 0, 2, 2 * segment, segment},
                          RelayStep{2, 0, 3, 2 * segment, segment}));
}

TEST(RelayPlan, OneReaderAndSmallWeightsNeedNone) {
  EXPECT_THAT(relay_plan(0, std::vector{1}, 100 * segment), IsEmpty());
  EXPECT_THAT(relay_plan(0, std::vector{1, 2, 3}, 3 * segment - 1), IsEmpty());
  EXPECT_THAT(relay_plan(0, std::vector<int>{}, segment), IsEmpty());
}

TEST(RelayPlan, BringsEachByteOnceToEachReaderByFewMessages) {
  testing::Random random(1);
  for (int round = 0; round < rounds(500) && !HasFailure(); ++round) {
    const int ranks = testing::between(random, 3, 70);
    const int holder = testing::between(random, 0, ranks - 1);
    std::vector<int> readers;
    for (int r = 0; r < ranks; ++r) {
      if (r != holder && testing::chance(random, 0.8)) readers.push_back(r);
    }
    if (readers.size() < 2) continue;
    const std::uint64_t bytes =
        8 * segment + 4 * static_cast<std::uint64_t>(testing::between(random, 0, 10'000'000));
    const std::vector<RelayStep> plan = relay_plan(holder, readers, bytes);
    std::map<std::pair<int, std::size_t>, int> hops = {};  // by rank and segment
    std::map<int, std::uint64_t> sent;
    std::map<int, std::map<std::uint64_t, std::uint64_t>> received;  // by rank: the first byte and the end
    for (const RelayStep& step : plan) {
      const bool is_first = step.from == holder;
      ASSERT_TRUE(is_first || hops.contains({step.from, step.segment}));
      ASSERT_EQ(step.first % 4, 0U);
      ASSERT_GE(step.bytes, segment - 4);
      hops[{step.to, step.segment}] = is_first ? 1 : hops.at({step.from, step.segment}) + 1;
      ASSERT_LE(hops.at({step.to, step.segment}), 4) << "1 + log_8 of 70 readers, and one";
      sent[step.from] += step.bytes;
      ASSERT_TRUE(received[step.to].emplace(step.first, step.first + step.bytes).second);
    }
    EXPECT_EQ(sent.at(holder), bytes);
    for (const int reader : readers) {
      std::uint64_t end = 0;
      for (const auto& [first, next] : received.at(reader)) EXPECT_EQ(first, std::exchange(end, next));
      EXPECT_EQ(end, bytes);
      EXPECT_LE(received.at(reader).size(), max_relay_segments);
      EXPECT_LT(sent[reader], 2 * bytes);
    }
    EXPECT_EQ(received.size(), readers.size());
  }
}

Costs of_weights(std::uint64_t bytes, Sharing sharing) {
  Costs costs;
  costs.sizes = {{.weights = bytes}};
  costs.links = Links({{.link = {.alpha = 0, .beta = 1.0 / segment}, .sharing = sharing}});
  costs.relays = true;
  costs.ordered_messages = true;
  return costs;
}

std::vector<double> first_starts(const Schedule& schedule, const Costs& costs) {
  const Timeline timeline = simulate(schedule, costs);
  std::vector<double> starts;
  for (const auto& row : timeline.order) starts.push_back(timeline.spans[row.front()].start);
  return starts;
}

TEST(Relays, AHoldersPortCarriesWeightsOnce) {
  const Schedule schedule =
      make_schedule("fsdp", {.workers = 4, .microbatches = 4, .graph = StageGraph::chain(1)});
  // Three segments leave together, and arrive at 3. Then each port passes two.
  Costs costs = of_weights(3 * segment, Sharing::fair);
  EXPECT_THAT(first_starts(schedule, costs), ElementsAre(0, 5, 5, 5));
  const std::vector<Transfers> received = count_transfers(schedule, costs);
  costs.relays = false;
  EXPECT_EQ(count_transfers(schedule, costs), received);
  EXPECT_THAT(first_starts(schedule, costs), ElementsAre(0, 9, 9, 9));
  // Where no transfer waits for another, a segment takes 1.
  EXPECT_THAT(first_starts(schedule, of_weights(3 * segment, Sharing::none)), ElementsAre(0, 2, 2, 2));
  // Without prefetch, weights come when a job reads them.
  costs = of_weights(3 * segment, Sharing::fair);
  costs.prefetch = false;
  EXPECT_THAT(first_starts(schedule, costs), ElementsAre(0, 9, 9, 9));
}

// Where each rank sends as much as it receives, relays would only add messages.
TEST(Relays, HelpWhereAPortSendsMoreThanOneReceives) {
  const std::vector<WeightsToSend> one = {{0, {1, 2, 3}, 100}};
  EXPECT_TRUE(relays_help(one));
  std::vector<WeightsToSend> each;
  for (int holder = 0; holder < 4; ++holder) {
    each.push_back({holder, {}, 100});
    for (int reader = 0; reader < 4; ++reader) {
      if (reader != holder) each.back().readers.push_back(reader);
    }
  }
  EXPECT_FALSE(relays_help(each));
  each.front().bytes = 200;  // it sends 600, and the others receive 400
  EXPECT_TRUE(relays_help(each));
  each.front().bytes = 120;  // 360 and 320
  EXPECT_FALSE(relays_help(each));
  EXPECT_FALSE(relays_help(std::vector<WeightsToSend>{{0, {1}, 100}}));
}

TEST(Relays, WeightsComeInTheOrderOfJobs) {
  const Schedule schedule =
      make_schedule("fsdp", {.workers = 4, .microbatches = 4, .graph = StageGraph::chain(5)});
  const Costs costs = of_weights(4 * segment, Sharing::fair);
  EXPECT_FALSE(relayed_weights(schedule, costs, Fetches(schedule, costs)).empty());
  const Timeline timeline = simulate(schedule, costs);
  for (int worker = 0; worker < 4; ++worker) {
    std::vector<double> ready;
    for (int s = 0; s < 5; ++s) {
      const JobId id = schedule.forward(s, worker);
      if (schedule.placement(id).weights != worker) ready.push_back(timeline.ready[id]);
    }
    EXPECT_TRUE(std::ranges::is_sorted(ready)) << ::testing::PrintToString(ready);
  }
}

TEST(Relays, WorkersOfARankShareACopy) {
  const Schedule schedule =
      make_schedule("fsdp", {.workers = 6, .microbatches = 6, .graph = StageGraph::chain(1)});
  Costs costs = of_weights(2 * segment, Sharing::fair);
  costs.workers_of_rank = 2;
  costs.links = Links({{.workers = 2}, costs.links.levels().front()});
  // The two segments arrive at 2, and are passed on.
  EXPECT_THAT(first_starts(schedule, costs), ElementsAre(0, 0, 3, 3, 3, 3));
  // Two ranks: one reader.
  costs.workers_of_rank = 3;
  costs.links = Links({{.workers = 3}, costs.links.levels().back()});
  EXPECT_THAT(first_starts(schedule, costs), ElementsAre(0, 0, 0, 2, 2, 2));
}

/// Each segment begins when it is at its sender, in the slow reference. Returns when each rank has all of the
/// weights, by stage, holder and rank.
std::map<std::tuple<int, int, int>, double> slow_relays(const Schedule& schedule, const Costs& costs) {
  struct Message {
    RelayStep step;
    std::tuple<int, int, int> of;
    int from;
    int to;
    bool is_sent = false;
  };
  const int each = costs.workers_of_rank;
  std::vector<Message> messages;
  for (const FetchedWeights& weights : relayed_weights(schedule, costs, Fetches(schedule, costs))) {
    for (const RelayStep& step : relay_plan(weights, each)) {
      const bool is_first = step.from == weights.from / each;
      messages.push_back({step,
                          {weights.stage, weights.from, step.to},
                          is_first ? weights.from : weights.readers.at(step.from),
                          weights.readers.at(step.to)});
    }
  }
  std::vector<testing::Sent> sent;
  std::vector<const Message*> of_sent;
  while (true) {
    const std::vector<double> arrived =
        testing::slow_arrivals(costs.links, sent, each, costs.ordered_messages);
    std::map<std::tuple<int, int, std::size_t, int>, double> there;  // by stage, holder, segment and rank
    std::map<std::tuple<int, int, int>, double> complete;
    for (std::size_t i = 0; i < sent.size(); ++i) {
      const auto& [stage, holder, rank] = of_sent[i]->of;
      there[{stage, holder, of_sent[i]->step.segment, rank}] = arrived[i];
      complete[of_sent[i]->of] = std::max(complete[of_sent[i]->of], arrived[i]);
    }
    Message* next = nullptr;
    double begins = 0;
    for (Message& message : messages) {
      if (message.is_sent) continue;
      const auto& [stage, holder, rank] = message.of;
      double at = 0;
      if (message.step.from != holder / each) {
        const auto parent = there.find({stage, holder, message.step.segment, message.step.from});
        if (parent == there.end()) continue;
        at = parent->second;
      }
      if (next == nullptr || at < begins - 1e-9) {
        next = &message;
        begins = at;
      }
    }
    if (next == nullptr) return complete;
    next->is_sent = true;
    sent.push_back({begins, next->from, next->to, next->step.bytes});
    of_sent.push_back(next);
  }
}

TEST(Relays, ArriveWhenTheReferenceSaysSo) {
  testing::Random random(5);
  int relayed = 0;
  for (int round = 0; round < rounds(20) && !HasFailure(); ++round) {
    const int each = testing::between(random, 1, 2);
    const int workers = each * testing::between(random, 3, 5);
    const int stages = testing::between(random, 1, 5);
    const Schedule schedule = make_schedule(
        "fsdp", {.workers = workers, .microbatches = workers, .graph = StageGraph::chain(stages)});
    Costs costs = of_weights(0, Sharing::fair);
    costs.sizes.resize(static_cast<std::size_t>(stages));
    for (StageSizes& size : costs.sizes)
      size.weights = 4 * segment + 4 * static_cast<std::uint64_t>(testing::between(random, 1, 300'000));
    const LinkLevel network{.link = {.alpha = testing::between(random, 0, 3) / 16.0, .beta = 1.0 / segment},
                            .sharing = Sharing::fair};
    costs.workers_of_rank = each;
    costs.ordered_messages = testing::chance(random, 0.5);
    costs.links = each == 1 ? Links({network}) : Links({{.workers = each}, network});
    const auto expected = slow_relays(schedule, costs);
    if (expected.empty()) continue;
    ++relayed;
    const Fetches fetches(schedule, costs);
    SharedTransfers transfers(schedule, costs, fetches, nullptr);
    std::vector<JobId> complete;
    std::vector<std::uint32_t> others;
    std::map<JobId, double> ready;
    transfers.send_weights(complete);
    transfers.begin(0);
    for (double now = transfers.next(); now < TransfersInFlight::never; now = transfers.next()) {
      complete.clear();
      transfers.advance(now, complete, others);
      transfers.begin(now);
      for (const JobId id : complete) ready[id] = now;
    }
    EXPECT_THAT(others, IsEmpty());
    for (const JobId id : schedule.order()) {
      double last = 0;
      fetches.for_each_of_weights(id, [&](const Fetch& fetch) {
        const int rank = schedule.compute(id) / each;
        if (fetch.from / each != rank) last = expected.at({fetch.stage, fetch.from, rank});
      });
      if (last == 0) continue;
      ASSERT_NEAR(ready.at(id), last, 1e-6) << "round " << round << ", " << to_string(schedule.job(id));
    }
  }
  EXPECT_GT(relayed, rounds(6));
}

}  // namespace
}  // namespace starpipe::plan
