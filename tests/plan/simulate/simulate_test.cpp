// SPDX-License-Identifier: Apache-2.0
// simulate by hand, and what it refuses.
#include "starpipe/plan/simulate/simulate.hpp"

#include <limits>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/simulate/transfers.hpp"
#include "support/message_of.hpp"

namespace starpipe::plan {
namespace {

using ::testing::HasSubstr;

TEST(SimulateRefuses, CostsThatCannotBe) {
  ScheduleSpec spec;
  spec.name = "test";
  spec.graph = StageGraph::chain(3);
  spec.placement = [](const Job&) { return Placement{}; };
  spec.priority = [](const Job& j) { return j.pass == Pass::F ? j.stage : 9 - j.stage; };
  const Schedule schedule(spec);
  const auto refusal = [&](auto&& edit) {
    Costs costs;
    return message_of([&] {
      edit(costs);
      simulate(schedule, costs);
    });
  };

  EXPECT_EQ(refusal([](Costs&) {}), "");
  EXPECT_THAT(refusal([](Costs& c) { c.links = Link{.alpha = -1}; }), HasSubstr("alpha=-1"));
  EXPECT_THAT(refusal([](Costs& c) { c.links = Link{.beta = -0.5}; }), HasSubstr("beta=-0.5"));
  EXPECT_THAT(refusal([](Costs& c) { c.durations = {{1, -2, 0}}; }), HasSubstr("B=-2"));
  EXPECT_THAT(refusal([](Costs& c) { c.durations = {{}, {}, {-1, 1, 1}}; }), HasSubstr("stage 2"));
  EXPECT_THAT(refusal([](Costs& c) { c.durations.resize(2); }), HasSubstr("2 stages"));
  EXPECT_THAT(refusal([](Costs& c) { c.durations.clear(); }), HasSubstr("0 stages"));
  EXPECT_THAT(refusal([](Costs& c) { c.sizes.resize(4); }), HasSubstr("4 stages"));
  EXPECT_THAT(refusal([](Costs& c) { c.links = Link{.alpha = std::numeric_limits<double>::quiet_NaN()}; }),
              HasSubstr("alpha"));
  EXPECT_THAT(refusal([](Costs& c) {
                c.durations = {{1, std::numeric_limits<double>::infinity(), 1}};
              }),
              HasSubstr("B=inf"));
}

TEST(SimulateRefuses, ScheduleThatCannotFinish) {
  ScheduleSpec spec;
  spec.name = "backwards";
  spec.placement = [](const Job&) { return Placement{}; };
  spec.priority = [](const Job& j) { return j.pass == Pass::F ? 1 : 0; };
  const Schedule schedule(spec);
  const std::string message = message_of([&] { simulate(schedule); });
  EXPECT_THAT(message, HasSubstr(check(schedule).problem));
  EXPECT_THAT(message, HasSubstr("backwards"));
}

TEST(SimulateByHand, TwoStagesWithTransfers) {
  // 0: F 0..1; activation travels 1 + 2 * 3 = 7; 1: F 8..9, BW 9..11; gradient 1 + 2 * 2 = 5; 0: BW 16..18.
  ScheduleSpec spec;
  spec.graph = StageGraph::chain(2);
  spec.workers = 2;
  spec.placement = [](const Job& j) { return Placement{j.stage, j.stage}; };
  spec.priority = [](const Job& j) { return j.pass == Pass::F ? j.stage : 9 - j.stage; };
  Costs costs;
  costs.links = Link{.alpha = 1, .beta = 2};
  costs.sizes = {{.activation = 3, .gradient = 2, .stash = 10}};
  for (const bool prefetch : {true, false}) {
    costs.prefetch = prefetch;
    const Schedule schedule(spec);
    const Timeline timeline = simulate(schedule, costs);
    EXPECT_EQ(timeline.makespan, 18);
    EXPECT_EQ(timeline.spans[schedule.forward(1, 0)].start, 8);
    EXPECT_EQ(timeline.spans[schedule.backward(0, 0)].start, 16);
    EXPECT_EQ(timeline.device_span, 18);
    EXPECT_DOUBLE_EQ(timeline.bubble_fraction, 1 - 6.0 / 36);
    EXPECT_DOUBLE_EQ(timeline.device_bubble_fraction, 1 - 3.0 / 18);
    EXPECT_THAT(timeline.peak_stash_bytes, ::testing::ElementsAre(10, 10));
    EXPECT_EQ(timeline.received[1].activations, (Received{1, 3}));
    EXPECT_EQ(timeline.received[0].gradients, (Received{1, 2}));
  }
}

TEST(SimulateByHand, GreedyTakesTheSmallestNAmongReadyJobsOnly) {
  // Unifying Schemes with its comma: worker 1 takes the job that is ready first, although n prefers another.
  ScheduleSpec spec;
  spec.graph = StageGraph(3, {{0, 2}, {1, 2}});
  spec.workers = 2;
  spec.discipline = Discipline::greedy;
  spec.microbatches = 2;
  spec.placement = [](const Job& j) { return Placement{j.stage == 0 ? 0 : 1, j.stage == 0 ? 0 : 1}; };
  spec.priority = [](const Job& j) { return j.stage == 2 ? 0 : 1; };
  Costs costs;
  costs.durations = {{3, 1, 0}, {1, 1, 0}, {1, 1, 0}};
  const Schedule schedule(spec);
  const Timeline timeline = simulate(schedule, costs);

  EXPECT_EQ(timeline.spans[schedule.forward(1, 0)].start, 0);
  EXPECT_EQ(timeline.spans[schedule.forward(1, 1)].start, 1);
  EXPECT_EQ(timeline.spans[schedule.forward(2, 0)].start, 3);
  EXPECT_EQ(timeline.spans[schedule.backward(2, 0)].start, 4);
}

TEST(SimulateByHand, NoWorkTakesNoTimeAndDividesByNothing) {
  ScheduleSpec spec;
  spec.graph = StageGraph::chain(2);
  spec.workers = 2;
  spec.placement = [](const Job& j) { return Placement{j.stage, j.stage}; };
  spec.priority = [](const Job& j) { return j.pass == Pass::F ? j.stage : 9 - j.stage; };
  Costs costs;
  costs.durations = {{0, 0, 0}};
  EXPECT_EQ(simulate(Schedule(spec), costs).makespan, 0);
  EXPECT_EQ(simulate(Schedule(spec), costs).bubble_fraction, 0);

  // Transfers are the only cost: the jobs of worker 1 have zero length.
  costs.links = Link{.alpha = 1};
  const auto timeline = simulate(Schedule(spec), costs);
  EXPECT_EQ(timeline.makespan, 2);
  EXPECT_EQ(timeline.bubble_fraction, 1);
  EXPECT_EQ(timeline.device_bubble_fraction, 1);

  // Each worker runs one job of zero length, so there is no device span.
  spec.graph = StageGraph::chain(1);
  spec.placement = [](const Job& j) { return j.pass == Pass::F ? Placement{0, 0} : Placement{1, 1}; };
  const auto apart = simulate(Schedule(spec), costs);
  EXPECT_EQ(apart.makespan, 1);
  EXPECT_EQ(apart.device_span, 0);
  EXPECT_EQ(apart.device_bubble_fraction, 0);
}

}  // namespace
}  // namespace starpipe::plan
