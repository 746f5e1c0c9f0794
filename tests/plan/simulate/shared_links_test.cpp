// SPDX-License-Identifier: Apache-2.0
// Schedules whose transfers share links.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/simulate/reductions.hpp"
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

/// A transfer for jobs, in the slow reference.
struct Read {
  double at;
  std::uint32_t turn;  // of the first reader
  std::size_t place;   // among the inputs of that reader
  testing::Sent sent;
  std::vector<JobId> readers;
};

/// Returns all transfers for jobs, in the order in which they begin.
std::vector<Read> reads_of(const Case& c, const Timeline& timeline) {
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
  return sorted;
}

/// The segments of all sums, in the slow reference.
class SlowSums {
 public:
  SlowSums(const Case& c, const Timeline& timeline) : c_(c), timeline_(timeline) {
    for (int s = 0; s < c.schedule.stages(); ++s) {
      if (!c.costs.size(s).has_weights) continue;
      for (const ReductionStep& step : reduction_plan(c.schedule, s, c.costs.size(s).updated()))
        steps_.push_back(step);
    }
    leaves_.resize(steps_.size(), never);
    arrives_.resize(steps_.size(), never);
  }

  /// Sends the segments, which leave when those before have arrived, together with `jobs`, until nothing
  /// changes. Returns the arrivals of `jobs`.
  std::vector<double> send_with(const std::vector<testing::Sent>& jobs) {
    while (true) {
      const bool changed = leave();
      std::vector<std::pair<testing::Sent, std::size_t>>
          all;  // and the place in `jobs` and `steps_` together
      for (std::size_t i = 0; i < jobs.size(); ++i) all.emplace_back(jobs[i], i);
      for (std::size_t i = 0; i < steps_.size(); ++i) {
        if (leaves_[i] < never)
          all.emplace_back(testing::Sent{leaves_[i], steps_[i].from, steps_[i].into, steps_[i].bytes},
                           jobs.size() + i);
      }
      std::ranges::stable_sort(all, {}, [](const auto& of) { return of.first.at; });
      std::vector<testing::Sent> sent;
      for (const auto& [transfer, place] : all) sent.push_back(transfer);
      const std::vector<double> times =
          testing::slow_arrivals(c_.costs.links, sent, c_.costs.workers_of_rank);
      std::vector<double> arrived(jobs.size() + steps_.size(), never);
      for (std::size_t i = 0; i < all.size(); ++i) arrived[all[i].second] = times[i];
      std::ranges::copy(arrived.begin() + static_cast<std::ptrdiff_t>(jobs.size()), arrived.end(),
                        arrives_.begin());
      arrived.resize(jobs.size());
      if (!changed) return arrived;
    }
  }

  [[nodiscard]] bool any() const { return !steps_.empty(); }
  [[nodiscard]] double last() const { return last_; }
  /// True if rounding may decide whether a segment arrives before a job starts.
  [[nodiscard]] bool rounded() const { return rounded_; }

 private:
  static constexpr double never = TransfersInFlight::never;

  // Returns whether a segment leaves at another time than before.
  bool leave() {
    bool changed = false;
    std::map<std::pair<int, int>, double> ready;  // by stage and worker
    for (const JobId id : c_.schedule.order()) {
      const Job job = c_.schedule.job(id);
      double& at = ready[{job.stage, c_.schedule.compute(id)}];
      if (job.pass == Pass::W || job.pass == Pass::BW) at = std::max(at, timeline_.spans[id].end);
    }
    for (std::size_t i = 0; i < steps_.size();) {
      const ReductionStep& first = steps_[i];
      std::map<int, double> arrived;
      for (; i < steps_.size() && steps_[i].stage == first.stage && steps_[i].round == first.round; ++i) {
        const ReductionStep& step = steps_[i];
        const double at = ready[{step.stage, step.from}];
        changed = changed || std::abs(at - leaves_[i]) > 1e-9;
        leaves_[i] = at;
        arrived[step.into] = std::max(arrived[step.into], arrives_[i]);
      }
      for (auto [worker, at] : arrived) {
        at = std::max(at, ready[{first.stage, worker}]);
        for (const JobId id : c_.schedule.order(worker)) {
          const Span span = timeline_.spans[id];
          rounded_ = rounded_ || std::abs(at - span.start) < 1e-9;
          if (span.start < at && at < span.end) at = span.end;
        }
        last_ = ready[{first.stage, worker}] = at;
      }
    }
    for (const auto& [of, at] : ready) last_ = std::max(last_, at);
    return changed;
  }

  const Case& c_;
  const Timeline& timeline_;
  std::vector<ReductionStep> steps_;
  std::vector<double> leaves_;
  std::vector<double> arrives_;
  double last_ = 0;
  bool rounded_ = false;
};

/// With prefetch, each job is ready when its producers have ended and all that it reads has arrived, if all
/// transfers began when their data were made, in the slow reference. Sums of gradients use the same links.
TEST(SimulateOverSharedLinks, JobsAreReadyAndGradientsSummedWhenTheReferenceSaysSo) {
  testing::Random random(3);
  int delayed = 0;
  int summed = 0;
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
    const std::vector<Read> reads = reads_of(c, timeline);
    std::vector<testing::Sent> sent;
    for (const Read& read : reads) sent.push_back(read.sent);
    SlowSums sums(c, timeline);
    const std::vector<double> arrived = sums.send_with(sent);
    std::vector<double> ready(c.schedule.id_count(), 0);
    for (const JobId id : c.schedule.order()) {
      c.schedule.for_each_pred(id, [&](JobId p) { ready[id] = std::max(ready[id], timeline.spans[p].end); });
    }
    for (std::size_t i = 0; i < reads.size(); ++i) {
      for (const JobId id : reads[i].readers) ready[id] = std::max(ready[id], arrived[i]);
      const Link link = c.costs.link(sent[i].from, sent[i].to);
      delayed += arrived[i] > sent[i].at + link.time(sent[i].bytes) + 1e-6 ? 1 : 0;
    }
    for (const JobId id : c.schedule.order()) {
      ASSERT_NEAR(timeline.ready[id], ready[id], 1e-6)
          << "round " << round << ", " << to_string(c.schedule.job(id));
    }
    ASSERT_EQ(timeline.gradients_summed.has_value(), sums.any());
    if (!sums.any() || sums.rounded()) continue;
    ASSERT_NEAR(*timeline.gradients_summed, std::max(timeline.makespan, sums.last() - first_start(timeline)),
                1e-6)
        << "round " << round;
    summed += *timeline.gradients_summed > timeline.makespan + 1e-6 ? 1 : 0;
  }
  EXPECT_GT(delayed, 0);
  EXPECT_GT(summed, rounds(100));
}

/// Two stages with a replica each on two workers, and one port. When W of stage 1 ends, its gradient is
/// summed while B of stage 0 waits for its input.
TEST(SimulateOverSharedLinks, SumsAndTransfersOfJobsDelayEachOther) {
  ScheduleSpec spec;
  spec.graph = StageGraph::chain(2);
  spec.workers = 4;
  spec.microbatches = 2;
  // Micro-batch b passes workers 2 b and 2 b + 1. Both run F, B and W; W of stage 1 comes before B leaves.
  spec.placement = [](const Job& job) {
    const int worker = 2 * job.microbatch + job.stage;
    return Placement{.weights = worker, .compute = worker};
  };
  spec.priority = [](const Job& job) { return job.pass == Pass::F ? job.stage : 10 - job.stage; };
  const Schedule schedule(spec);
  Costs costs;
  costs.sizes = {{.activation = 4, .gradient = 4, .weights = 8}};
  costs.links = Links({{.link = {.alpha = 0, .beta = 1}, .sharing = Sharing::in_order}});
  // F0 0-1, its activation until 5, F1 5-6, BW1 6-8. The gradient of 4 bytes leaves for worker 0 and 2 first,
  // until 12; then a half of the sum goes from worker 1 to 3, and one from 3 to 1, until 16, and back
  // until 20. BW0 runs from 12 to 14, and its sum goes until 18 and 22.
  const Timeline timeline = simulate(schedule, costs);
  EXPECT_EQ(timeline.makespan, 14);
  EXPECT_EQ(timeline.gradients_summed, 22);
  // With fair sharing they pass together: 4 bytes each way of both in 8.
  costs.links = Links({{.link = {.alpha = 0, .beta = 1}, .sharing = Sharing::fair}});
  EXPECT_EQ(simulate(schedule, costs).makespan, 18);
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
