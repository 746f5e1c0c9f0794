// SPDX-License-Identifier: Apache-2.0
// Schedules under a memory limit: an order that fits is kept, another one keeps the limit and says so.
#include "starpipe/plan/simulate/limited_schedule.hpp"

#include <algorithm>
#include <optional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "starpipe/base/index.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/simulate/simulate.hpp"

namespace starpipe::plan {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Le;

bool equal_spans(const Timeline& a, const Timeline& b) {
  return std::ranges::equal(
      a.spans, b.spans, [](const Span& x, const Span& y) { return x.start == y.start && x.end == y.end; });
}

std::optional<Schedule> try_make(const std::string& name, const ScheduleRequest& request) {
  try {
    return make_schedule(name, request);
  } catch (const InputError&) {
    return std::nullopt;
  }
}

class LimitOfEverySchedule : public ::testing::TestWithParam<std::string> {};

TEST_P(LimitOfEverySchedule, KeepsAnOrderThatFitsAndAnyOtherKeepsTheLimit) {
  const std::string& name = GetParam();
  int kept = 0;
  for (const int workers : {1, 2, 4, 6}) {
    for (const int microbatches : {1, 4, 8, 12}) {
      for (const bool recompute : {false, true}) {
        const Costs costs{.durations = {{1, 2, 0.5}},
                          .links = Link{.alpha = microbatches % 8 == 0 ? 0.25 : 0}};
        ScheduleRequest request{.workers = workers, .microbatches = microbatches, .costs = costs};
        if (recompute) request.homes = {Home::none};
        if (name == "lpp" || name == "fslpp") request.groups = workers % 2 == 0 ? 2 : 1;
        const std::optional<Schedule> own = try_make(name, request);
        if (!own) continue;  // not defined for these numbers
        SCOPED_TRACE(name + " W=" + std::to_string(workers) + " B=" + std::to_string(microbatches));
        const Timeline free = simulate(*own, costs);
        const int need = std::ranges::max(free.peak_stashes);  // as outputs print it
        for (const int limit : {need, need + 1, need + 50}) {
          const LimitedSchedule made =
              make_limited_schedule(name, request, {.memory_limits = {limit}}, costs);
          EXPECT_FALSE(made.reordering);
          EXPECT_THAT(made.schedule.memory_limits(), Each(Le(limit)));
          EXPECT_TRUE(equal_spans(simulate(made.schedule, costs), free)) << "limit " << limit;
          ++kept;
        }
        for (int limit = 1; limit < need; limit += 1 + need / 8) {
          const LimitedSchedule made =
              make_limited_schedule(name, request, {.memory_limits = {limit}}, costs);
          if (!check(made.schedule).ok()) {  // fewer than the stages of one micro-batch on a worker
            EXPECT_THAT(check(made.schedule).problem, HasSubstr("memory limit"));
            continue;
          }
          EXPECT_THAT(simulate(made.schedule, costs).peak_stashes, Each(Le(limit)));
          ASSERT_TRUE(made.reordering) << "limit " << limit;
          EXPECT_EQ(made.reordering->limit, limit);
          EXPECT_GT(made.reordering->held, limit);
        }
      }
    }
  }
  EXPECT_GT(kept, 0);
}

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const ScheduleEntry& entry : schedule_entries()) all.push_back(entry.name);
  return all;
}

INSTANTIATE_TEST_SUITE_P(, LimitOfEverySchedule, ::testing::ValuesIn(names()), [](const auto& test) {
  std::string name = test.param;
  std::ranges::replace_if(
      name, [](char c) { return c == '-'; }, '_');
  return name;
});

TEST(LimitedSchedules, ALimitThatDoesNotBindCostsNothing) {
  const ScheduleRequest request{.workers = 4, .microbatches = 8};
  const auto makespan = [&](std::vector<int> limits) {
    const LimitedSchedule made =
        make_limited_schedule("v-half", request, {.memory_limits = std::move(limits)}, {});
    return simulate(made.schedule).makespan;
  };
  EXPECT_EQ(makespan({}), 53);
  EXPECT_EQ(makespan({6}), 53);
  EXPECT_EQ(makespan({8}), 53);
}

// An order made for a limit is not the schedule's own, whoever asks for the ordered discipline.
TEST(LimitedSchedules, ARequestedDisciplineIsHeldAgainstTheOwnOrder) {
  const ScheduleRequest request{.workers = 4, .microbatches = 12};
  const auto make = [&](int limit) {
    return make_limited_schedule("k-periodic", request,
                                 {.discipline = Discipline::ordered, .memory_limits = {limit}}, {});
  };
  ASSERT_TRUE(make(2).reordering);
  EXPECT_EQ(make(2).reordering->held, 4);
  EXPECT_FALSE(make(4).reordering);
  const double own = simulate(make_schedule("k-periodic", request)).makespan;
  EXPECT_EQ(simulate(make(4).schedule).makespan, own);
  EXPECT_GT(simulate(make(2).schedule).makespan, own);
}

// A schedule may recompute although the request does not ask for it.
TEST(LimitedSchedules, OwnRecomputationIsAsGoodAsOneThatIsAskedFor) {
  register_schedule(
      {.name = "recomputing",
       .summary = "odd",
       .source = "tests",
       .build =
           [](const auto& request) {
             return make_schedule("v-half", request).with_recomputation().with(Discipline::greedy, {});
           },
       .stages_per_worker = 2});
  const Costs plain{.durations = {{.F = 5, .B = 1, .W = 0.5}}, .links = Link{.alpha = 0.25}};
  ScheduleRequest asked{.workers = 4, .microbatches = 8, .homes = {Home::none}};
  ScheduleRequest request{.workers = 4, .microbatches = 8};
  for (const int limit : {3, 4, 5, 8, 16}) {
    const OrderRequest order{.memory_limits = {limit}};
    const LimitedSchedule limited = make_limited_schedule("recomputing", request, order, plain);
    const LimitedSchedule expected = make_limited_schedule("recomputing", asked, order, plain);
    EXPECT_EQ(limited.schedule, expected.schedule) << limit;
    EXPECT_EQ(limited.reordering.has_value(), expected.reordering.has_value()) << limit;
  }
}

// With recomputation a stash lives from R on, so an order needs fewer.
TEST(LimitedSchedules, CountStashesAsPeaksDo) {
  const Costs costs;
  const auto make = [&](const char* name, int limit) {
    return make_limited_schedule(name,
                                 {.workers = 4, .microbatches = 12, .homes = {Home::none}, .costs = costs},
                                 {.memory_limits = {limit}}, costs);
  };
  const LimitedSchedule gpipe = make("gpipe", 1);
  EXPECT_FALSE(gpipe.reordering);
  EXPECT_THAT(simulate(gpipe.schedule, costs).peak_stashes, Each(1));
  const LimitedSchedule fits = make("v-half", 4);
  EXPECT_FALSE(fits.reordering);
  EXPECT_EQ(simulate(fits.schedule, costs).makespan, 101);
  EXPECT_EQ(std::ranges::max(simulate(fits.schedule, costs).peak_stashes), 4);
  const LimitedSchedule other = make("v-half", 3);
  ASSERT_TRUE(other.reordering);
  EXPECT_EQ(other.reordering->held, 4);
  EXPECT_THAT(simulate(other.schedule, costs).peak_stashes, Each(Le(3)));
}

/// Forward passes first, on one worker for each stage, under limits of its own.
Schedule wave(int own_limit) {
  return Schedule(
      {.name = "wave",
       .graph = StageGraph::chain(3),
       .microbatches = 12,
       .workers = 3,
       .placement =
           [](const Job& job) {
             return Placement{job.stage, job.stage};
           },
       .priority = [](const Job& job) { return (job.pass == Pass::F ? 0 : 100) + job.microbatch; },
       .discipline = Discipline::bounded,
       .memory_limits = {own_limit, own_limit, own_limit}});
}

TEST(LimitedSchedules, TheSmallerLimitHolds) {
  const LimitedSchedule tighter = as_requested(wave(8), {.memory_limits = {4}}, {});
  EXPECT_THAT(simulate(tighter.schedule).peak_stashes, Each(Le(4)));
  ASSERT_TRUE(tighter.reordering);
  EXPECT_EQ(tighter.reordering->limit, 4);
  EXPECT_THAT(describe_reordering("wave", tighter.reordering), HasSubstr("memory limit of 4"));
  const LimitedSchedule wider = as_requested(wave(3), {.memory_limits = {4}}, {});
  EXPECT_EQ(wider.schedule, wave(3));
  EXPECT_FALSE(wider.reordering);
  EXPECT_EQ(describe_reordering("wave", wider.reordering), "");
}

TEST(LimitedSchedules, ARequestedDisciplineIsObeyed) {
  const LimitedSchedule bounded =
      as_requested(wave(8), {.discipline = Discipline::bounded, .memory_limits = {4}}, {});
  EXPECT_EQ(bounded.schedule.discipline(), Discipline::bounded);
  EXPECT_TRUE(bounded.reordering);
  const LimitedSchedule greedy =
      as_requested(wave(8), {.discipline = Discipline::greedy, .memory_limits = {4}}, {});
  EXPECT_THAT(check(greedy.schedule).problem, HasSubstr("keeps no memory limit"));
  const LimitedSchedule dynamic = as_requested(wave(8), {.memory_limits = {9}, .dynamic = true}, {});
  EXPECT_EQ(dynamic.schedule, wave(8));
}

}  // namespace
// Each worker has a limit of its own; one number is the limit of all.
TEST(LimitedSchedule, LimitsOfEachWorker) {
  const ScheduleRequest request{.workers = 4, .microbatches = 12};
  const Schedule own = make_schedule("1f1b", request);  // holds 4, 3, 2 and 1
  const LimitedSchedule kept = make_limited_schedule("1f1b", request, {.memory_limits = {4, 3, 2, 1}}, {});
  EXPECT_FALSE(kept.reordering);
  EXPECT_THAT(kept.schedule.order(0), ::testing::ElementsAreArray(own.order(0)));
  const LimitedSchedule other = make_limited_schedule("1f1b", request, {.memory_limits = {4, 3, 1, 1}}, {});
  EXPECT_EQ(other.reordering, (Reordering{.worker = 2, .held = 2, .limit = 1}));
  EXPECT_THAT(other.schedule.memory_limits(), ::testing::ElementsAre(4, 3, 1, 1));
  EXPECT_LE(simulate(other.schedule, {}).peak_stashes[2], 1);
  for (const std::vector<int>& wrong : {std::vector{1, 2, 3}, std::vector{4, 3, 2, 0}})
    EXPECT_THROW(make_limited_schedule("1f1b", request, {.memory_limits = wrong}, {}), InputError);
}

}  // namespace starpipe::plan
