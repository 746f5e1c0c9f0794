// SPDX-License-Identifier: Apache-2.0
// The named ways to choose homes of stashes, against the figures and formulas of their papers.
#include "starpipe/plan/simulate/home_ways.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/simulate/limited_schedule.hpp"
#include "starpipe/plan/simulate/simulate.hpp"

namespace starpipe::plan {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Le;
using ::testing::ThrowsMessage;

Schedule chosen(const std::string& way, const Schedule& schedule, const Costs& costs,
                std::vector<int> limits = {}) {
  return as_requested(schedule, {.memory_limits = std::move(limits), .home_way = way}, costs).schedule;
}

Costs one_and_two(double copy) {
  Costs costs{.durations = {{1, 2, 0}}};
  costs.set_copy(copy);
  return costs;
}

int count(const Schedule& schedule, Pass pass, int stage) {
  return static_cast<int>(std::ranges::count_if(schedule.order(), [&](JobId id) {
    return schedule.job(id).pass == pass && schedule.job(id).stage == stage;
  }));
}

// BPipe, section 3: no worker holds more than ceil((p + 2) / 2) activations, in the time of 1F1B.
TEST(HomeWays, BpipeBalancesPartners) {
  for (const int p : {2, 3, 4, 5, 6, 7, 8, 16}) {
    for (const double copy : {0.0, 0.25, 1.0}) {
      SCOPED_TRACE(::testing::Message() << p << " workers, copies of " << copy);
      const Costs costs = one_and_two(copy);
      const Schedule kept = make_schedule("1f1b", {.workers = p, .microbatches = 3 * p});
      const Schedule balanced = chosen("bpipe", kept, costs);
      ASSERT_EQ(check(balanced).problem, "");
      const int bound = (p + 2 + 1) / 2;
      EXPECT_THAT(stashes_in_order(balanced), Each(Le(bound)));
      const Timeline timeline = simulate(balanced, costs);
      EXPECT_THAT(timeline.peak_stashes, Each(Le(bound)));
      EXPECT_EQ(timeline.makespan, simulate(kept, costs).makespan);
      for (int w = 0; w < p; ++w)
        EXPECT_TRUE(std::ranges::equal(balanced.order(w), kept.order(w),
                                       [&](JobId a, JobId b) { return balanced.job(a) == kept.job(b); }));
    }
  }
}

// Partners under interleaved 1F1B have their peaks at other times, so they need some stashes more than the
// mean.
TEST(HomeWays, BpipeBalancesInterleavedWorkers) {
  const Costs costs = one_and_two(0.25);
  const Schedule kept =
      make_schedule("interleaved-1f1b", {.workers = 8, .microbatches = 32, .graph = StageGraph::chain(16)});
  const std::vector<int> before = stashes_in_order(kept);
  const Schedule balanced = chosen("bpipe", kept, costs);
  ASSERT_EQ(check(balanced).problem, "");
  const std::vector<int> after = stashes_in_order(balanced);
  EXPECT_EQ(std::ranges::max(before), 23);
  EXPECT_EQ(std::ranges::max(after), 19);
  for (std::size_t w = 0; w < after.size(); ++w)
    EXPECT_LE(after[w], std::max((before[w] + before[7 - w]) / 2 + 3, before[w])) << w;
  EXPECT_EQ(simulate(balanced, costs).makespan, simulate(kept, costs).makespan);
}

// Copies that take longer than a pass F hold their stashes beyond the bound.
TEST(HomeWays, BpipeRefusesSlowCopies) {
  const Schedule kept = make_schedule("1f1b", {.workers = 8, .microbatches = 24});
  EXPECT_THAT([&] { chosen("bpipe", kept, one_and_two(4)); },
              ThrowsMessage<InputError>(HasSubstr("home: bpipe: copies take too long")));
}

// Mario: all stashes but those of the last stage are made again, and a worker holds one. R runs before the
// gradient arrives, so the step takes less than with F in every backward pass.
TEST(HomeWays, MarioOverlapsRecomputation) {
  for (const int p : {2, 4, 8}) {
    const int n = 2 * p;
    const Schedule kept = make_schedule("1f1b", {.workers = p, .microbatches = n});
    const Schedule remade = chosen("mario", kept, one_and_two(0));
    for (int s = 0; s < p; ++s) EXPECT_EQ(count(remade, Pass::R, s), s == p - 1 ? 0 : n);
    EXPECT_THAT(stashes_in_order(remade), Each(1));
    const double makespan = simulate(remade, one_and_two(0)).makespan;
    const Costs in_backward{.durations = {{1, 3, 0}}};
    EXPECT_LT(makespan, simulate(kept, in_backward).makespan);
    EXPECT_GE(makespan, 4 * n);  // F, R and BW of the first worker
  }
}

// Megatron: of a window of m forward passes the first K - 1 keep their stashes, where worker x of 1F1B has m
// = p - x.
TEST(HomeWays, MegatronKeepsAPartOfEachWindow) {
  const int p = 8;
  const Schedule kept = make_schedule("1f1b", {.workers = p, .microbatches = 32});
  for (int limit = 1; limit <= p; ++limit) {
    SCOPED_TRACE(limit);
    const Schedule made = chosen("megatron", kept, one_and_two(0), {limit});
    ASSERT_EQ(check(made).problem, "");
    for (int s = 0; s < p; ++s) {
      const int window = p - s;
      int remade = 0;
      for (int b = 0; b < 32; ++b) remade += window > limit && b % window >= limit - 1 ? 1 : 0;
      EXPECT_EQ(count(made, Pass::R, s), remade) << "stage " << s;
    }
  }
}

// PipeOffload, section 3: where a stash can go and come back in the time of its passes, all that wait go, for
// nothing.
TEST(HomeWays, PipeoffloadCostsNoTime) {
  for (const char* name :
       {"1f1b", "interleaved-1f1b", "gpipe", "zb-h1", "v-half", "v-zb", "chimera", "dualpipe-v"}) {
    const Schedule kept = make_schedule(name, {.workers = 4, .microbatches = 16});
    for (const double copy : {0.25, 0.5, 1.0, 2.0, 3.5}) {
      SCOPED_TRACE(::testing::Message() << name << ", copies of " << copy);
      const Costs costs = one_and_two(copy);
      const Schedule made = chosen("pipeoffload", kept, costs);
      ASSERT_EQ(check(made).problem, "");
      const Timeline timeline = simulate(made, costs);
      const Timeline without = simulate(kept, costs);
      EXPECT_NEAR(timeline.makespan, without.makespan, 1e-6);
      for (std::size_t w = 0; w < without.peak_stashes.size(); ++w)
        EXPECT_LE(timeline.peak_stashes[w], without.peak_stashes[w]);
    }
  }
  const Schedule interleaved = make_schedule("interleaved-1f1b", {.workers = 4, .microbatches = 16});
  EXPECT_EQ(simulate(interleaved, one_and_two(1)).peak_stashes, (std::vector{11, 9, 7, 5}));
  EXPECT_THAT(simulate(chosen("pipeoffload", interleaved, one_and_two(1)), one_and_two(1)).peak_stashes,
              ElementsAre(2, 2, 2, 2));
}

// A link that workers share lets less through, and n proves a limit before the run.
TEST(HomeWays, PipeoffloadCountsNeighboursOnALink) {
  Costs costs{.durations = {{1, 2, 0}}, .sizes = {{.stash = 100}}};
  costs.host = HomeLink{.link = {.beta = 0.01}, .workers = 4};
  const Schedule kept = make_schedule("1f1b", {.workers = 4, .microbatches = 16});
  const Schedule made = chosen("pipeoffload", kept, costs);
  EXPECT_NEAR(simulate(made, costs).makespan, simulate(kept, costs).makespan,
              0.05 * simulate(kept, costs).makespan);
  const std::vector<int> most = stashes_in_order(made);
  EXPECT_EQ(check(made.with(Discipline::ordered, most)).problem, "");
}

TEST(HomeWays, OfEveryOrderedNamedSchedule) {
  const Costs costs = one_and_two(0.5);
  for (const ScheduleEntry& entry : schedule_entries()) {
    ScheduleRequest request{.workers = 4, .microbatches = 8};
    if (entry.name == "lpp" || entry.name == "fslpp") request.groups = 2;
    const Schedule named = make_schedule(entry.name, request);
    if (named.discipline() != Discipline::ordered) continue;
    for (const HomeWay& way : home_ways()) {
      SCOPED_TRACE(entry.name + ", " + way.name);
      try {
        const Schedule made =
            chosen(way.name, named, costs, way.needs_limits ? std::vector{8} : std::vector<int>{});
        const std::string problem = check(made.with(Discipline::ordered)).problem;
        EXPECT_EQ(problem, "");
      } catch (const InputError& error) {
        EXPECT_THAT(error.what(), HasSubstr("home: ")) << "it says what it is not defined for";
      }
    }
  }
}

TEST(HomeWays, RefuseWhatTheyCannotKeep) {
  const Schedule kept = make_schedule("1f1b", {.workers = 4, .microbatches = 8});
  const auto refuse = [&](const std::string& way, const std::string& text, const OrderRequest& order = {}) {
    OrderRequest request = order;
    request.home_way = way;
    EXPECT_THAT([&] { as_requested(kept, request, {}); }, ThrowsMessage<InputError>(HasSubstr(text)));
  };
  refuse("megatron", "home: megatron needs a memory limit");
  refuse("auto", "home: auto needs a memory limit");
  refuse("pipeoffload", "the time of a copy to the host is not known");
  refuse("mario", "so the discipline is ordered", {.discipline = Discipline::greedy});
  refuse("bpipe", "so the discipline is ordered", {.dynamic = true});
  refuse("mpipe", "unknown home 'mpipe'");
}

}  // namespace
}  // namespace starpipe::plan
