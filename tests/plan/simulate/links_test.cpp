// SPDX-License-Identifier: Apache-2.0
// Links of several levels and transfers that share them: by hand, and against a slow reference that knows
// all transfers at all times.
#include "starpipe/plan/simulate/links.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/simulate/transfers_in_flight.hpp"
#include "plan/slow_reference.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/simulate/simulate.hpp"
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

struct Sent {
  double at;
  int from;
  int to;
  std::uint64_t bytes;
};

/// Returns the time at which each transfer arrives. `sent`: in the order of their times.
std::vector<double> arrivals(const Links& links, const std::vector<Sent>& sent, int workers_of_rank = 1) {
  TransfersInFlight in_flight(links, workers_of_rank);
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

/// The arrivals by another way: all transfers and all ports of the machine are gone through at each event.
std::vector<double> slow_arrivals(const Links& links, const std::vector<Sent>& sent, int workers_of_rank) {
  using Port = std::tuple<std::size_t, int, bool>;
  constexpr std::size_t none = static_cast<std::size_t>(-1);
  struct Transfer {
    std::size_t level;
    std::set<Port> ports;
    double at_ports;
    double left;               // seconds alone
    std::size_t after = none;  // the one before it in its stream
    double rate = 0;
    double arrival = -1;
  };
  constexpr double infinity = std::numeric_limits<double>::infinity();
  std::vector<Transfer> all;
  std::map<std::pair<int, int>, std::size_t> last_of_stream;
  for (const auto& [at, from, to, bytes] : sent) {
    std::size_t l = 0;
    int inner = 1;
    for (; l + 1 < links.levels().size(); ++l) {
      if (from / links.levels()[l].workers == to / links.levels()[l].workers) break;
      inner = links.levels()[l].workers;
    }
    const LinkLevel& level = links.levels()[l];
    all.push_back({l,
                   {{l, from / inner, true}, {l, to / inner, false}},
                   at + level.link.alpha,
                   level.link.beta * static_cast<double>(bytes)});
    if (from / workers_of_rank != to / workers_of_rank || level.link.time(bytes) == 0) continue;
    const auto [stream, is_new] = last_of_stream.try_emplace({from, to}, all.size() - 1);
    if (!is_new) all.back().after = std::exchange(stream->second, all.size() - 1);
  }
  double now = 0;
  while (true) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      Transfer& t = all[i];
      if (t.after != none && all[t.after].arrival >= 0) {
        const double begins = std::max(sent[i].at, all[t.after].arrival);
        t.at_ports = begins + links.levels()[t.level].link.alpha;
        t.after = none;
      }
      const bool begun = t.after == none && t.at_ports <= now;
      if (t.arrival < 0 && begun && t.left <= 1e-12) t.arrival = now;
    }
    const auto busy = [&](const Transfer& t) {
      return t.arrival < 0 && t.after == none && t.at_ports <= now;
    };
    // Rates.
    std::map<Port, double> used;
    std::set<const Transfer*> open;
    for (std::size_t i = 0; i < all.size(); ++i) {
      Transfer& t = all[i];
      t.rate = 0;
      if (!busy(t)) continue;
      const Sharing sharing = links.levels()[t.level].sharing;
      if (sharing == Sharing::none) t.rate = 1;
      if (sharing == Sharing::fair) open.insert(&t);
      if (sharing == Sharing::in_order) {
        // No earlier unfinished transfer uses one of the ports.
        bool first = true;
        for (std::size_t j = 0; j < i; ++j) {
          const bool meets =
              std::ranges::any_of(all[j].ports, [&](const Port& p) { return t.ports.contains(p); });
          if (meets && all[j].arrival < 0 && all[j].left > 0) first = false;
        }
        t.rate = first ? 1 : 0;
      }
    }
    while (!open.empty()) {  // all open rates grow together until a port is full
      std::map<Port, int> users;
      for (const Transfer* t : open) {
        for (const Port& p : t->ports) ++users[p];
      }
      double step = infinity;
      for (const auto& [p, count] : users) step = std::min(step, (1 - used[p]) / count);
      for (const Transfer* t : open) {
        const_cast<Transfer*>(t)->rate += step;
        for (const Port& p : t->ports) used[p] += step;
      }
      std::erase_if(open, [&](const Transfer* t) {
        return std::ranges::any_of(t->ports, [&](const Port& p) { return used[p] > 1 - 1e-9; });
      });
    }
    double next = infinity;
    for (const Transfer& t : all) {
      if (t.arrival >= 0 || t.after != none) continue;
      if (t.at_ports > now) next = std::min(next, t.at_ports);
      if (busy(t) && t.rate > 0) next = std::min(next, now + t.left / t.rate);
    }
    if (next == infinity) break;
    for (Transfer& t : all) {
      if (busy(t)) t.left -= t.rate * (next - now);
    }
    now = next;
  }
  std::vector<double> times;
  for (const Transfer& t : all) times.push_back(t.arrival);
  return times;
}

const std::vector<Sharing> every_sharing = {Sharing::none, Sharing::in_order, Sharing::fair};
// Without ports in order: if two transfers within ranks begin at one time, the reference does not know which
// of them takes a port first.
const std::vector<Sharing> sharing_within_ranks = {Sharing::none, Sharing::fair};

TEST(TransfersInFlight, ArriveAsInTheSlowReference) {
  testing::Random random(1);
  for (int round = 0; round < rounds(1500) && !HasFailure(); ++round) {
    const int workers_of_rank = testing::chance(random, 0.5) ? 1 : 5;
    const Links links =
        testing::random_links(random, workers_of_rank == 1 ? every_sharing : sharing_within_ranks);
    std::vector<Sent> sent(index(testing::between(random, 1, 14)));
    for (Sent& transfer : sent) {
      transfer.at = testing::between(random, 0, 12) / 4.0;
      transfer.from = testing::between(random, 0, 9);
      transfer.to = (transfer.from + testing::between(random, 1, 9)) % 10;
      transfer.bytes = static_cast<std::uint64_t>(testing::between(random, 0, 6));
    }
    std::ranges::stable_sort(sent, {}, &Sent::at);
    const std::vector<double> fast = arrivals(links, sent, workers_of_rank);
    const std::vector<double> slow = slow_arrivals(links, sent, workers_of_rank);
    for (std::size_t i = 0; i < sent.size(); ++i) {
      EXPECT_NEAR(fast[i], slow[i], 1e-6) << "round " << round << ", transfer " << i << " of " << sent.size();
    }
  }
}

/// Stage 0 on worker 0 feeds stages 1 and 2 on workers 1 and 2, which feed stage 3 on worker 3.
Schedule fork() {
  ScheduleSpec spec;
  spec.name = "fork";
  spec.graph = StageGraph(4, {{0, 1}, {0, 2}, {1, 3}, {2, 3}});
  spec.workers = 4;
  spec.placement = [](const Job& job) { return Placement{.weights = job.stage, .compute = job.stage}; };
  spec.priority = [](const Job& job) { return job.pass == Pass::F ? job.stage : 10 - job.stage; };
  return Schedule(spec);
}

TEST(SimulateOverSharedLinks, DelaysWhatLeavesAndWhatArrivesTogether) {
  Costs costs;
  costs.sizes = {{.activation = 2, .gradient = 2}};
  const auto start_of = [&](Sharing sharing, int stage) {
    costs.links = Links({{.link = {.alpha = 0.5, .beta = 1}, .sharing = sharing}});
    const Schedule schedule = fork();
    return simulate(schedule, costs).spans[schedule.forward(stage, 0)].start;
  };
  // F0 ends at 1.
  EXPECT_EQ(start_of(Sharing::none, 1), 3.5);
  EXPECT_EQ(start_of(Sharing::none, 2), 3.5);
  EXPECT_EQ(start_of(Sharing::none, 3), 7);
  EXPECT_EQ(start_of(Sharing::in_order, 1), 3.5);
  EXPECT_EQ(start_of(Sharing::in_order, 2), 5.5);  // after the transfer to stage 1, which has the smaller n
  EXPECT_EQ(start_of(Sharing::in_order, 3), 9);    // F2 ends at 6.5; F1's output has been there since 7
  EXPECT_EQ(start_of(Sharing::fair, 1), 5.5);
  EXPECT_EQ(start_of(Sharing::fair, 2), 5.5);
  EXPECT_EQ(start_of(Sharing::fair, 3), 11);  // both end at 6.5, and share worker 3's port in
}

TEST(SimulateOverSharedLinks, WithoutPrefetchFetchesOneInputAfterTheOther) {
  Costs costs;
  costs.prefetch = false;
  costs.sizes = {{.activation = 2, .gradient = 2}};
  costs.links = Links({{.link = {.alpha = 0.5, .beta = 1}, .sharing = Sharing::in_order}});
  const Schedule schedule = fork();
  const Timeline timeline = simulate(schedule, costs);
  EXPECT_EQ(timeline.spans[schedule.forward(1, 0)].start, 3.5);
  EXPECT_EQ(timeline.spans[schedule.forward(2, 0)].start, 5.5);
  // F1 ends at 4.5 and F2 at 6.5. Then worker 3 fetches both outputs.
  EXPECT_EQ(timeline.spans[schedule.forward(3, 0)].start, 11.5);
}

TEST(SimulateOverSharedLinks, WeightsLeaveTogetherAtTimeZero) {
  const Schedule schedule = make_schedule("fsdp", {.workers = 3, .microbatches = 3});
  Costs costs;
  costs.sizes = {{.weights = 2}};
  const auto last_first_start = [&](Sharing sharing) {
    costs.links = Links({{.link = {.alpha = 0, .beta = 1}, .sharing = sharing}});
    const Timeline timeline = simulate(schedule, costs);
    double last = 0;
    for (const auto& row : timeline.order) last = std::max(last, timeline.spans[row.front()].start);
    return last;
  };
  EXPECT_EQ(last_first_start(Sharing::none), 2);
  // Worker 0 holds stage 0 and sends it to two others.
  EXPECT_EQ(last_first_start(Sharing::in_order), 4);
  EXPECT_GT(last_first_start(Sharing::fair), 2);
}

TEST(SimulateOverSharedLinks, ARankReceivesWeightsOnce) {
  const Schedule schedule =
      make_schedule("fsdp", {.workers = 4, .microbatches = 4, .graph = StageGraph::chain(1)});
  Costs costs;
  costs.sizes = {{.weights = 2}};
  costs.links = Links({{.workers = 2, .link = {.alpha = 0, .beta = 1}, .sharing = Sharing::fair},
                       {.link = {.alpha = 0, .beta = 1}, .sharing = Sharing::fair}});
  const auto starts = [&](int workers_of_rank) {
    costs.workers_of_rank = workers_of_rank;
    const Timeline timeline = simulate(schedule, costs);
    std::vector<double> first;
    for (const auto& row : timeline.order) first.push_back(timeline.spans[row.front()].start);
    return first;
  };
  // Worker 0 holds the stage. Both workers of the other node want it over the port of node 0.
  EXPECT_THAT(starts(1), ElementsAre(0, 2, 4, 4));
  EXPECT_THAT(starts(2), ElementsAre(0, 2, 2, 2));
  // Where nothing is shared, too: no transfer waits, and the transfers from one worker to another follow each
  // other.
  costs.links = Links({.alpha = 0, .beta = 1});
  EXPECT_THAT(starts(1), ElementsAre(0, 2, 2, 2));
  EXPECT_THAT(starts(2), ElementsAre(0, 2, 2, 2));
  // Without prefetch each worker fetches for itself.
  costs.prefetch = false;
  const std::vector<double> own = starts(1);
  EXPECT_EQ(starts(2), own);
}

TEST(SimulateOverSharedLinks, WithinARankWeightsOfOneHolderFollowEachOther) {
  // Worker 0 holds both stages, and worker 1 runs them for one of the micro-batches.
  ScheduleSpec spec;
  spec.graph = StageGraph::chain(2);
  spec.workers = 2;
  spec.microbatches = 2;
  spec.placement = [](const Job& job) { return Placement{.weights = 0, .compute = job.microbatch}; };
  spec.priority = [](const Job& job) { return job.pass == Pass::F ? job.stage : 10 - job.stage; };
  const Schedule schedule(spec);
  Costs costs;
  costs.sizes = {{.weights = 4}};
  costs.links = Link{.alpha = 0, .beta = 1};
  const auto start_of = [&](int stage) {
    return simulate(schedule, costs).spans[schedule.forward(stage, 1)].start;
  };
  EXPECT_EQ(start_of(0), 4);
  EXPECT_EQ(start_of(1), 5);
  costs.workers_of_rank = 2;
  EXPECT_EQ(start_of(0), 4);
  EXPECT_EQ(start_of(1), 8);
}

struct Case {
  Schedule schedule;
  Costs costs;
};

Case random_case(testing::Random& random) {
  const auto discipline = testing::chance(random, 0.5) ? Discipline::ordered : Discipline::greedy;
  Schedule schedule = testing::sound_schedule(random, discipline, 0.5);
  Costs costs = testing::random_costs(random, schedule.stages());
  return {std::move(schedule), std::move(costs)};
}

/// The transfers as events on their own give the same as times that are known in advance, where nothing is
/// shared.
TEST(SimulateOverSharedLinks, AreAsWithoutSharingWhereTransfersDoNotMeet) {
  testing::Random random(2);
  for (int round = 0; round < rounds(800) && !HasFailure(); ++round) {
    Case c = random_case(random);
    const Link link{.alpha = testing::between(random, 0, 4) / 4.0,
                    .beta = testing::between(random, 0, 4) / 4.0};
    c.costs.links = link;
    const Timeline expected = simulate(c.schedule, c.costs);
    // The second level is shared, but no two workers are on both sides of it.
    int all = 2;
    while (all < c.schedule.workers()) all *= 2;
    c.costs.links =
        Links({{.workers = all, .link = link}, {.link = {.alpha = 1, .beta = 1}, .sharing = Sharing::fair}});
    ASSERT_TRUE(c.costs.links.shared());
    const Timeline timeline = simulate(c.schedule, c.costs);
    EXPECT_EQ(timeline.order, expected.order);
    for (const JobId id : c.schedule.order()) {
      ASSERT_EQ(timeline.spans[id].start, expected.spans[id].start) << to_string(c.schedule.job(id));
      ASSERT_EQ(timeline.ready[id], expected.ready[id]) << to_string(c.schedule.job(id));
    }
    EXPECT_EQ(timeline.makespan, expected.makespan);
  }
}

/// With prefetch, each job is ready when its producers have ended and all that it reads has arrived, if all
/// transfers began when their data were made, in the slow reference.
TEST(SimulateOverSharedLinks, JobsAreReadyWhenTheReferenceSaysSo) {
  testing::Random random(3);
  int delayed = 0;
  for (int round = 0; round < rounds(800) && !HasFailure(); ++round) {
    Case c = random_case(random);
    c.costs.prefetch = true;
    // Jobs of no length have rounds of their own at one time; the reference does not know their order.
    for (Durations& d : c.costs.durations) d = {.F = d.F + 0.25, .B = d.B + 0.25, .W = d.W + 0.25};
    c.costs.workers_of_rank = testing::chance(random, 0.5) ? 1 : c.schedule.workers();
    c.costs.links = testing::random_links(random, c.costs.workers_of_rank == 1
                                                      ? std::vector{Sharing::in_order, Sharing::fair}
                                                      : sharing_within_ranks);
    const Timeline timeline = simulate(c.schedule, c.costs);
    struct Read {
      double at;
      std::uint32_t turn;  // of the first reader
      std::size_t place;   // among the inputs of that reader
      Sent sent;
      std::vector<JobId> readers;
    };
    std::map<std::pair<int, std::pair<int, std::tuple<int, int, int>>>, Read> reads;
    for (const JobId id : c.schedule.order()) {
      const int worker = c.schedule.compute(id);
      std::size_t place = 0;
      for (const testing::Input& input : testing::inputs(c.schedule, c.costs, id)) {
        ++place;
        if (input.from == worker) continue;
        const double at = input.maker ? timeline.spans[*input.maker].end : 0;
        Read& read =
            reads
                .try_emplace({worker, {input.kind, input.what}},
                             Read{at, c.schedule.turn(id), place, {at, input.from, worker, input.bytes}, {}})
                .first->second;
        read.readers.push_back(id);
      }
    }
    std::vector<Read> sorted;
    for (auto& [key, read] : reads) sorted.push_back(std::move(read));
    std::ranges::stable_sort(sorted, {}, [](const Read& r) { return std::tuple(r.at, r.turn, r.place); });
    std::vector<Sent> sent;
    for (const Read& read : sorted) sent.push_back(read.sent);
    const std::vector<double> arrived = slow_arrivals(c.costs.links, sent, c.costs.workers_of_rank);
    std::vector<double> ready(c.schedule.id_count(), 0);
    for (const JobId id : c.schedule.order()) {
      c.schedule.for_each_pred(id, [&](JobId p) { ready[id] = std::max(ready[id], timeline.spans[p].end); });
    }
    for (std::size_t i = 0; i < sorted.size(); ++i) {
      for (const JobId id : sorted[i].readers) ready[id] = std::max(ready[id], arrived[i]);
      const Link link = c.costs.link(sent[i].from, sent[i].to);
      delayed += arrived[i] > sent[i].at + link.time(sent[i].bytes) + 1e-6 ? 1 : 0;
    }
    for (const JobId id : c.schedule.order()) {
      ASSERT_NEAR(timeline.ready[id], ready[id], 1e-6)
          << "round " << round << ", " << to_string(c.schedule.job(id));
    }
  }
  EXPECT_GT(delayed, 0);
}

/// In a fixed order nothing is earlier because of sharing.
TEST(SimulateOverSharedLinks, NothingInAnOrderIsEarlierThanWithoutSharing) {
  testing::Random random(4);
  int later = 0;
  for (int round = 0; round < rounds(400) && !HasFailure(); ++round) {
    Case c = random_case(random);
    if (c.schedule.discipline() != Discipline::ordered) continue;
    const Links shared = testing::random_links(random, {Sharing::in_order, Sharing::fair});
    std::vector<LinkLevel> levels = shared.levels();
    for (LinkLevel& level : levels) level.sharing = Sharing::none;
    c.costs.links = Links(levels);
    const Timeline alone = simulate(c.schedule, c.costs);
    c.costs.links = shared;
    const Timeline timeline = simulate(c.schedule, c.costs);
    for (const JobId id : c.schedule.order())
      ASSERT_GE(timeline.spans[id].start, alone.spans[id].start - 1e-9) << to_string(c.schedule.job(id));
    later += timeline.makespan > alone.makespan + 1e-6 ? 1 : 0;
  }
  EXPECT_GT(later, 0);
}

}  // namespace
}  // namespace starpipe::plan
