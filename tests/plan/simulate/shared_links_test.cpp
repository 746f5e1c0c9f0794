// SPDX-License-Identifier: Apache-2.0
// Schedules whose transfers share links.
#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/simulate/slow_transfers.hpp"
#include "plan/simulate/transfers_in_flight.hpp"
#include "plan/slow_reference.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/simulate/links.hpp"
#include "starpipe/plan/simulate/simulate.hpp"
#include "support/random_schedules.hpp"
#include "support/rounds.hpp"

namespace starpipe::plan {
namespace {

using ::testing::ElementsAre;

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

using testing::Case;

Case random_case(testing::Random& random) {
  while (true) {
    const Discipline discipline = testing::chance(random, 0.5) ? Discipline::ordered : Discipline::greedy;
    Schedule schedule(testing::random_spec(random, {.sound_priority = 0.5}));
    schedule = schedule.with(discipline);
    if (!check(schedule).ok()) continue;
    if (testing::chance(random, 0.25)) schedule = schedule.with_recomputation();
    const int stages = schedule.stages();
    return {std::move(schedule), testing::random_costs(random, stages)};
  }
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

/// A job of length 0 that waits for an arrival ends in the round of the arrival, before other jobs start: a
/// job that it makes ready may be chosen at once.
TEST(SimulateOverSharedLinks, AJobWithoutLengthEndsWhenItsInputArrives) {
  ScheduleSpec spec;
  spec.graph = StageGraph::chain(3);
  spec.workers = 2;
  spec.microbatches = 2;
  // Stage 2 is on worker 0, so that worker 0 chooses between F(2,0) and F(0,1), which is ready later in n.
  spec.placement = [](const Job& job) {
    const int worker = job.stage % 2;
    return Placement{.weights = worker, .compute = worker};
  };
  spec.priority = [](const Job& job) {
    return job.pass == Pass::F ? 10 - 2 * job.stage + job.microbatch : -2 * job.stage + job.microbatch;
  };
  spec.discipline = Discipline::greedy;
  const Schedule schedule(spec);
  Costs costs;
  costs.prefetch = false;
  costs.durations = {{.F = 1, .B = 1, .W = 1}, {.F = 0, .B = 0, .W = 0}, {.F = 1, .B = 1, .W = 1}};
  costs.sizes = {{.activation = 1, .gradient = 1}};
  const Link link{.alpha = 0, .beta = 1};
  const auto order_with = [&](const Links& links) {
    costs.links = links;
    return simulate(schedule, costs).order;
  };
  const auto expected = order_with(link);
  EXPECT_EQ(order_with(Links({{.workers = 2, .link = link}, {.link = link, .sharing = Sharing::fair}})),
            expected);
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
                                                      : testing::sharing_within_ranks);
    const Timeline timeline = simulate(c.schedule, c.costs);
    struct Read {
      double at;
      std::uint32_t turn;  // of the first reader
      std::size_t place;   // among the inputs of that reader
      testing::Sent sent;
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
    std::vector<testing::Sent> sent;
    for (const Read& read : sorted) sent.push_back(read.sent);
    const std::vector<double> arrived = testing::slow_arrivals(c.costs.links, sent, c.costs.workers_of_rank);
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
