// SPDX-License-Identifier: Apache-2.0
// When weight gradients are summed: cases counted by hand, and against a slow reference.
#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/simulate/reductions.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/simulate.hpp"
#include "support/random_schedules.hpp"
#include "support/rounds.hpp"

namespace starpipe::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::Optional;

Links one_level(double alpha, double beta, Sharing sharing = Sharing::none) {
  return Links({{.link = {.alpha = alpha, .beta = beta}, .sharing = sharing}});
}

// Four replicas of a stage, each with one micro-batch: all W end at 3. A transfer has a latency of 1, and its
// bytes pass a port in a quarter each. Neighbours exchange halves, of 8 bytes, until 6, and workers 0 and 2,
// and 1 and 3, quarters until 8. The sums go back: quarters until 10, halves until 13. Each port carries one
// transfer at a time.
TEST(GradientsSummed, TakeTheTimeOfHalvesAndQuarters) {
  const Schedule schedule =
      make_schedule("ddp", {.workers = 4, .microbatches = 4, .graph = StageGraph::chain(1)});
  for (const Sharing sharing : {Sharing::none, Sharing::in_order, Sharing::fair}) {
    const Costs costs{.sizes = {{.weights = 16}}, .links = one_level(1, 0.25, sharing)};
    const Timeline timeline = simulate(schedule, costs);
    EXPECT_EQ(timeline.makespan, 3);
    EXPECT_THAT(timeline.gradients_summed, Optional(13));
  }
}

// Worker 0 has stage 1 and micro-batch 0 of stage 0, worker 1 has micro-batch 1 of stage 0. W of stage 1
// lasts 4, all other passes 1, and a byte takes 1.
//   worker 0   F00 F10 F11 B10 B11 B00 W00 W10     W11
//              0   1   2   3   4   5   6   7       11      15
//   worker 1   F01                 B01 W01
//              0   1               5   6   7
// So both workers send half of their gradient of stage 0 at 7.
Schedule with_late_additions() {
  const std::map<std::pair<int, int>, std::vector<int>> turns = {// stage, micro-batch: of F, B, W
                                                                 {{0, 0}, {0, 5, 6}},
                                                                 {{1, 0}, {1, 3, 7}},
                                                                 {{1, 1}, {2, 4, 8}},
                                                                 {{0, 1}, {9, 10, 11}}};
  return Schedule(
      {.name = "late",
       .graph = StageGraph::chain(2),
       .microbatches = 2,
       .workers = 2,
       .split_backward = [](int, int) { return true; },
       .placement =
           [](const Job& job) {
             const int worker = job.stage == 0 ? job.microbatch : 0;
             return Placement{.weights = worker, .compute = worker};
           },
       .priority =
           [turns](const Job& job) {
             const int pass = job.pass == Pass::F ? 0 : job.pass == Pass::B ? 1 : 2;
             return std::int64_t{turns.at({job.stage, job.microbatch}).at(static_cast<std::size_t>(pass))};
           }});
}

TEST(GradientsSummed, AnAdditionWaitsForTheJobThatItsWorkerRuns) {
  const Schedule schedule = with_late_additions();
  const auto summed = [&](std::uint64_t bytes) {
    const Costs costs{.durations = {{1, 1, 1}, {1, 1, 4}},
                      .sizes = {{.weights = bytes}, {.weights = 100}},
                      .links = one_level(0, 0.5)};
    const Timeline timeline = simulate(schedule, costs);
    EXPECT_EQ(timeline.makespan, 15);
    return timeline.gradients_summed;
  };
  // Halves of 4 bytes come at 9. Worker 0 adds its half at 11, and it is on worker 1 at 13.
  EXPECT_THAT(summed(8), Optional(15));
  // They come at 11, as W of one micro-batch ends and the next begins: worker 0 adds between the two.
  EXPECT_THAT(summed(16), Optional(15));
  // They come at 13. Worker 0 adds at 15, and its half is on worker 1 at 21.
  EXPECT_THAT(summed(24), Optional(21));
}

// Stage 1 is on worker 1 and shares its weights with stage 0, on worker 0, which holds them: 0 bytes, of
// which the gradient has 4. F0 0-1, F1 1-2, BW1 2-4, BW0 4-6. A byte takes 1.
TEST(GradientsSummed, WeightsThatStagesShareAreSummedOnTheirHolder) {
  const Schedule schedule = make_schedule("1f1b", {.workers = 2, .microbatches = 1});
  const Costs costs{.sizes = {{.weights = 50, .has_weights = false}},
                    .shared = {{.stages = {0, 1}, .weights = 0, .master = 4}},
                    .links = one_level(0, 1)};
  const Timeline timeline = simulate(schedule, costs);
  EXPECT_EQ(timeline.makespan, 6);
  EXPECT_THAT(timeline.gradients_summed, Optional(8));
}

Schedule replicas_of_one_stage(int workers) {
  return make_schedule("ddp", {.workers = workers, .microbatches = workers, .graph = StageGraph::chain(1)});
}

// Eight workers: neighbours exchange halves, workers at a distance of 2 quarters, of 4 eighths, and back.
TEST(ReductionPlan, HalvesAndDoubles) {
  constexpr std::uint64_t bytes = 32;
  std::map<int, std::vector<std::uint64_t>> sent;  // by worker
  for (const ReductionStep& step : reduction_plan(replicas_of_one_stage(8), 0, bytes)) {
    const int distance = 1 << (step.finished ? 5 - step.round : step.round);
    EXPECT_EQ(step.from ^ step.into, distance);
    sent[step.from].push_back(step.bytes);
  }
  for (int w = 0; w < 8; ++w) EXPECT_THAT(sent[w], ElementsAre(16, 8, 4, 4, 8, 16)) << w;
}

// Each port carries twice 2/3 of the gradient on average, and no worker sends more than three messages a way.
TEST(ReductionPlan, TakesAnyNumberOfWorkers) {
  constexpr std::uint64_t bytes = 12'000'000;
  for (int workers = 2; workers <= 33; ++workers) {
    std::map<int, std::uint64_t> sent;
    std::map<int, std::uint64_t> received;
    std::uint64_t all = 0;
    for (const ReductionStep& step : reduction_plan(replicas_of_one_stage(workers), 0, bytes)) {
      EXPECT_EQ(step.first % 4, 0U);
      sent[step.from] += step.bytes;
      received[step.into] += step.bytes;
      all += step.bytes;
    }
    EXPECT_EQ(all, 2 * static_cast<std::uint64_t>(workers - 1) * bytes) << workers;
    for (int w = 0; w < workers; ++w) {
      EXPECT_LT(sent[w], 2.5 * bytes) << workers;
      EXPECT_LT(received[w], 2.5 * bytes) << workers;
    }
  }
}

TEST(ReductionPlan, LeavesOutSegmentsOfNoBytes) {
  const std::vector<ReductionStep> steps = reduction_plan(replicas_of_one_stage(4), 0, 4);
  EXPECT_EQ(steps.size(), 6U) << "each worker but one sends four bytes and gets them back";
  for (const ReductionStep& step : steps) EXPECT_EQ(step.bytes, 4U);
  EXPECT_EQ(reduction_plan(replicas_of_one_stage(4), 0, 0).size(), 16U) << "the size is not known";
}

TEST(GradientsSummed, AreThereOnlyWhereWorkersShareAGradient) {
  const Costs costs{.links = one_level(1, 0)};
  EXPECT_EQ(simulate(make_schedule("1f1b", {.workers = 2, .microbatches = 4}), costs).gradients_summed,
            std::nullopt);
  const Schedule replicas = make_schedule("ddp", {.workers = 2, .microbatches = 4});
  EXPECT_NE(simulate(replicas, costs).gradients_summed, std::nullopt);
  Costs without = costs;
  without.sizes = {{.has_weights = false}};
  EXPECT_EQ(simulate(replicas, without).gradients_summed, std::nullopt);
  Costs late = costs;
  late.prefetch = false;
  EXPECT_EQ(simulate(replicas, late).gradients_summed, std::nullopt);
  EXPECT_EQ(simulate(forward_passes(replicas, 4), costs).gradients_summed, std::nullopt);
}

/// Step by step, as a worker's sums follow one another; links that no transfers share.
std::optional<double> slow_sums(const Schedule& schedule, const Costs& costs, const Timeline& timeline) {
  bool any = false;
  double last = 0;
  for (const JobId id : schedule.order()) last = std::max(last, timeline.spans[id].end);
  for (int s = 0; s < schedule.stages(); ++s) {
    if (!costs.size(s).has_weights) continue;
    std::map<int, double> ready;
    for (const JobId id : schedule.order()) {
      const Job job = schedule.job(id);
      if (job.stage != s || (job.pass != Pass::W && job.pass != Pass::BW)) continue;
      double& own = ready[schedule.compute(id)];
      own = std::max(own, timeline.spans[id].end);
    }
    const std::vector<ReductionStep> steps = reduction_plan(schedule, s, costs.size(s).updated());
    for (int round = 0; !steps.empty() && round <= steps.back().round; ++round) {
      std::map<int, double> arrived;
      for (const ReductionStep& step : steps) {
        if (step.round != round) continue;
        any = true;
        double& at = arrived[step.into];
        at = std::max(at, ready[step.from] + costs.link(step.from, step.into).time(step.bytes));
      }
      for (auto& [worker, at] : arrived) {
        at = std::max(at, ready[worker]);
        for (const JobId id : schedule.order(worker)) {
          const Span span = timeline.spans[id];
          if (span.start < at && at < span.end) at = span.end;
        }
      }
      for (const auto& [worker, at] : arrived) last = std::max(last, ready[worker] = at);
    }
  }
  if (!any) return std::nullopt;
  return last - first_start(timeline);
}

TEST(GradientsSummed, EqualASlowReference) {
  testing::Random random(31);
  int later = 0;
  for (int round = 0; round < rounds(1500) && !HasFailure(); ++round) {
    const Schedule schedule(testing::random_spec(random));
    if (!check(schedule).ok()) continue;
    Costs costs = testing::random_costs(random, schedule.stages());
    costs.links = testing::random_links(random, {Sharing::none});
    costs.prefetch = true;
    SCOPED_TRACE(round);
    const Timeline timeline = simulate(schedule, costs);
    EXPECT_EQ(timeline.gradients_summed, slow_sums(schedule, costs, timeline));
    if (timeline.gradients_summed.value_or(0) > timeline.makespan) ++later;
    costs.links = {};
    const Timeline free = simulate(schedule, costs);
    if (free.gradients_summed) {
      EXPECT_EQ(*free.gradients_summed, free.makespan);
    }
  }
  EXPECT_GT(later, rounds(200)) << "the sums hardly ever took time";
}

}  // namespace
}  // namespace starpipe::plan
