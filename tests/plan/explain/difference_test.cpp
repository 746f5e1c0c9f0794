// SPDX-License-Identifier: Apache-2.0
// The way from the predicted makespan to the measured one, and the record that it is found from.
#include <algorithm>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "plan/explain/compared_run.hpp"
#include "plan/explain/random_steps.hpp"
#include "plan/explain/step_costs.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/plan/simulate/simulate.hpp"
#include "support/message_of.hpp"
#include "support/schedules.hpp"

namespace starpipe::plan {
namespace {

using testing::Random;

/// The jobs of a timeline as measured runs, from time `origin` on.
std::vector<JobRun> runs_of(const Schedule& schedule, const Timeline& timeline, double origin = 0) {
  std::vector<JobRun> runs;
  for (const JobId id : schedule.order()) {
    const Span& span = timeline.spans[id];
    runs.push_back({.job = id,
                    .worker = schedule.compute(id),
                    .submitted = origin,
                    .ready = origin + timeline.ready[id],
                    .start = origin + span.start,
                    .end = origin + span.end});
  }
  return runs;
}

/// Returns a part of the difference by its name.
double part_of(const Difference& difference, std::string_view name) {
  const auto part = std::ranges::find(difference_parts, name, &DifferencePart::name);
  return difference.*part->to - difference.*part->from;
}

void expect_sum(const Difference& difference) {
  double sum = difference.predicted;
  for (const DifferencePart& part : difference_parts) sum += part_of(difference, part.name);
  EXPECT_EQ(sum, difference.measured);
}

/// Under a policy that chooses the workers, jobs that add to one weight gradient wait for each other. That is
/// no transfer. Where the jobs run as planned they do not, and the same times mean a late message.
TEST(Difference, AWaitForAWeightGradientIsNoTransfer) {
  const Schedule gpipe = make_schedule("gpipe", {.workers = 2, .microbatches = 2});
  for (const int moved : {0, 1}) {
    const auto run = [](JobId id, int worker, double ready, double start, double end) {
      return JobRun{.job = id, .worker = worker, .ready = ready, .start = start, .end = end};
    };
    const std::vector<JobRun> runs = {
        run(gpipe.forward(0, 0), 0, 0, 0, 1),       run(gpipe.forward(0, 1), 0, 0, 1, 2),
        run(gpipe.forward(1, 0), 1, 1, 1, 2),       run(gpipe.forward(1, 1), 1, 2, 2, 3),
        run(gpipe.backward(1, 0), 1, 2, 3, 4),      run(gpipe.backward(1, 1), 1, 3, 4, 5),
        run(gpipe.backward(0, 0), moved, 5, 5, 10), run(gpipe.backward(0, 1), 0, 10, 10, 12)};
    EXPECT_EQ(measured_step(gpipe, runs).transfer[gpipe.backward(0, 1)], moved == 1 ? 0 : 5);
  }
}

TEST(Difference, AddsUpForEveryNamedScheduleAndAnyTimes) {
  Random random(1);
  for (const Schedule& example : examples()) {
    const Schedule schedule = example.without_pairs();  // any times are not those of pairs
    const Schedule as_run = testing::elsewhere(random, schedule);
    const Schedule own_order = ordered_as_simulated(schedule);
    for (const Schedule* ran : {&as_run, &own_order}) {
      const auto runs =
          testing::random_run(random, *ran, {.duration = 12, .transfer = 8, .submission = 20, .delay = 3});
      const RecordedStep step = measured_step(schedule, runs);
      const Costs costs = testing::random_costs(random, schedule.stages());
      const Difference difference = plan::difference(step, costs);
      SCOPED_TRACE(schedule.name());
      expect_sum(difference);
      EXPECT_EQ(difference.predicted, simulate(schedule, costs).makespan);
      EXPECT_EQ(difference.measured, step.timeline.makespan);
    }
  }
}

TEST(Difference, AddsUpForRandomSchedules) {
  Random random(2);
  for (int round = 0; round < 600 && !HasFailure(); ++round) {
    const Schedule schedule = testing::random_schedule(random);
    const Schedule as_run = testing::elsewhere(random, schedule);
    const auto runs =
        testing::random_run(random, as_run, {.duration = 12, .transfer = 8, .submission = 20, .delay = 3});
    expect_sum(difference(measured_step(schedule, runs), testing::random_costs(random, schedule.stages())));
  }
}

/// No simulated start is later than the measured one, so the runtime's part is never negative. It is none
/// when nothing but durations and transfers differed and all transfers were observed.
TEST(Difference, TheRuntimesPartIsWhatNoSimulationHas) {
  Random random(3);
  int without = 0;
  for (int round = 0; round < 3000 && !HasFailure(); ++round) {
    const Schedule schedule = testing::random_schedule(random);
    const Schedule as_run =
        testing::chance(random, 0.5) ? testing::elsewhere(random, schedule) : ordered_as_simulated(schedule);
    const bool disturbed = testing::chance(random, 0.5);
    const int max = disturbed ? 3 : 0;
    auto runs = testing::random_run(random, as_run, {.submission = 4 * max, .delay = max});
    const Costs own = with_known_copies({.prefetch = testing::chance(random, 0.5)});
    if (!own.prefetch) {
      for (JobRun& run : runs) run.ready = run.start;
    }
    const RecordedStep step = measured_step(schedule, runs, own);
    const Timeline simulated = simulate(step.as_run, own, step.times(true));
    bool all_observed = true;
    for (const JobId id : as_run.order()) {
      EXPECT_LE(simulated.spans[id].start, step.timeline.spans[id].start) << testing::describe(step);
      const bool receives = last_input(step.as_run, step.timeline, id).from.has_value();
      all_observed = all_observed && (!receives || step.transfer_observed[id]);
    }
    const double runtime = part_of(difference(step, own), "runtime");
    EXPECT_GE(runtime, 0) << testing::describe(step);
    // Of jobs that start at one time, a record does not tell which came first, or waited for the other's
    // memory.
    const bool is_ambiguous = std::ranges::any_of(step.timeline.order, [&](const std::vector<JobId>& row) {
      const auto start = [&](JobId id) { return step.timeline.spans[id].start; };
      return std::ranges::adjacent_find(row, {}, start) != row.end();
    });
    if (disturbed || !all_observed || is_ambiguous || schedule.copies()) continue;
    EXPECT_EQ(runtime, 0) << testing::describe(step);
    ++without;
  }
  EXPECT_GT(without, 100);
}

/// A run that went as simulated has no difference, whatever the discipline and the costs.
TEST(Difference, OfASimulatedStepIsNone) {
  Random random(4);
  for (int round = 0; round < 800 && !HasFailure(); ++round) {
    const Schedule schedule = testing::random_schedule(random);
    const Costs costs = testing::random_costs(random, schedule.stages());
    const RecordedStep step = simulated_step(schedule, costs);
    const Difference difference = plan::difference(step, costs);
    EXPECT_EQ(part_of(difference, "durations"), 0);
    EXPECT_EQ(part_of(difference, "transfers"), 0) << costs.prefetch << "\n" << testing::describe(step);
    EXPECT_EQ(part_of(difference, "order"), 0) << costs.prefetch << "\n" << testing::describe(step);
    EXPECT_EQ(part_of(difference, "runtime"), 0);
  }
}

/// The same from the times that a measurement has, which do not show transfers that no job waited for.
TEST(Difference, OfARunAsPredictedIsNone) {
  Random random(5);
  int compared = 0;
  for (int round = 0; round < 600 && !HasFailure(); ++round) {
    const Schedule schedule = testing::random_schedule(random);
    Costs costs = testing::random_costs(random, schedule.stages());
    costs.prefetch = true;
    costs.links = Link{.alpha = costs.link(0, 1).alpha};
    const Timeline timeline = simulate(schedule, costs);
    if (first_start(timeline) > 0) continue;  // then the record begins later than the simulation
    const RecordedStep step = measured_step(schedule, runs_of(schedule, timeline, 100), costs);
    // Where no transfer was observed alone, nothing tells how long one takes.
    if (std::ranges::count(step.transfer_observed, true) == 0) continue;
    ++compared;
    const Difference difference = plan::difference(step, costs);
    EXPECT_EQ(difference.measured, difference.predicted);
    EXPECT_EQ(part_of(difference, "durations"), 0);
    EXPECT_EQ(part_of(difference, "transfers"), 0) << testing::describe(step);
    EXPECT_EQ(part_of(difference, "order"), 0) << testing::describe(step);
  }
  EXPECT_GT(compared, 300);
}

TEST(Difference, NamesTheOneThingThatDiffered) {
  const Schedule schedule = named("1f1b", 4, 8);
  const Costs costs = {.durations = {{1, 2, 0}}, .links = Link{.alpha = 0.25}};
  const auto expect_only = [&](const std::string& part, const std::vector<JobRun>& runs) {
    SCOPED_TRACE(part);
    const Difference found = difference(measured_step(schedule, runs, costs), costs);
    EXPECT_EQ(part_of(found, "durations") > 0, part == "durations") << part_of(found, "durations");
    EXPECT_EQ(part_of(found, "transfers") > 0, part == "transfers") << part_of(found, "transfers");
    EXPECT_EQ(part_of(found, "order") > 0, part == "order") << part_of(found, "order");
    EXPECT_EQ(part_of(found, "runtime") > 0, part == "runtime") << part_of(found, "runtime");
    EXPECT_GT(found.measured, found.predicted);
  };
  JobTimes slow;
  JobTimes late;
  for (const JobId id : schedule.order()) {
    slow.duration.resize(schedule.id_count());
    late.transfer.resize(schedule.id_count());
    const Job job = schedule.job(id);
    slow.duration[id] = costs.duration(job.stage).of(job.pass) * (job.stage == 2 ? 2 : 1);
    late.transfer[id] = schedule.compute(id) == 2 ? 1.5 : 0.25;
  }
  expect_only("durations", runs_of(schedule, simulate(schedule, costs, slow)));
  expect_only("transfers", runs_of(schedule, simulate(schedule, costs, late)));

  // A policy that ignores n: each micro-batch runs through all stages before the next.
  const Schedule naive = named("naive", 4, 8);
  ASSERT_EQ(naive.id_count(), schedule.id_count());
  expect_only("order", runs_of(naive, simulate(naive, costs)));

  // Every job starts late, although it was submitted so late that its input did not wait.
  std::vector<JobRun> runs = runs_of(schedule, simulate(schedule, costs));
  for (JobRun& run : runs) {
    const double duration = run.end - run.start;
    run.start *= 2;
    run.end = run.start + duration;
    run.ready = run.start;
    run.submitted = run.start - 0.25;
  }
  expect_only("runtime", runs);
}

/// A policy that chooses workers: transfers are as fast as predicted, and only the workers differ.
TEST(Difference, OtherWorkersAreAnotherOrder) {
  const Schedule schedule = named("gpipe", 4, 8);
  const Costs costs = {.durations = {{1, 2, 0}}, .links = Link{.alpha = 1.5}};
  for (int round = 0; round < 20; ++round) {
    const ScheduleSpec spec = {.name = "moved",
                               .graph = schedule.graph(),
                               .microbatches = 8,
                               .workers = 4,
                               .placement =
                                   [round](const Job& job) {
                                     const int worker = (job.stage * 5 + job.microbatch * (round + 3)) % 4;
                                     return Placement{worker, worker};
                                   },
                               .priority = [](const Job& job) { return job.microbatch; },
                               .discipline = Discipline::greedy};
    const Schedule moved(spec);
    std::vector<JobRun> runs = runs_of(moved, simulate(moved, costs));
    for (JobRun& run : runs) run.job = *schedule.find(moved.job(run.job));
    const Difference found = difference(measured_step(schedule, runs, costs), costs);
    EXPECT_EQ(part_of(found, "durations"), 0);
    EXPECT_EQ(part_of(found, "transfers"), 0) << part_of(found, "transfers");
  }
}

TEST(MeasuredStep, RefusesWhatCannotHaveRun) {
  const Schedule schedule = named("1f1b", 2, 2);
  const auto runs = runs_of(schedule, simulate(schedule));
  const auto message = [&](const std::function<void(std::vector<JobRun>&)>& spoil) {
    std::vector<JobRun> spoilt = runs;
    spoil(spoilt);
    return message_of([&] { measured_step(schedule, spoilt); });
  };
  const auto expect = [&](const std::string& part, const std::function<void(std::vector<JobRun>&)>& spoil) {
    const std::string text = message(spoil);
    EXPECT_NE(text.find(part), std::string::npos) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  };
  EXPECT_EQ(message([](auto&) {}), "");
  expect("lacks", [](auto& all) { all.pop_back(); });
  expect("twice", [](auto& all) { all.push_back(all.front()); });
  expect("job number 8, which schedule 1f1b does not have", [](auto& all) { all.front().job = 8; });
  expect("worker 2, which does not exist", [](auto& all) { all.front().worker = 2; });
  expect("worker -1, which does not exist", [](auto& all) { all.front().worker = -1; });
  expect("ran from", [](auto& all) { all.front().end = all.front().start - 1; });
  expect("ran from", [](auto& all) { all.front().ready = std::numeric_limits<double>::quiet_NaN(); });
  expect("is a cycle", [&](auto& all) {
    for (JobRun& run : all) {  // backward passes before forward passes
      if (schedule.job(run.job).pass == Pass::F) run.start += 100, run.end += 100;
    }
  });
}

/// Jobs without length that start together: the record keeps an order that can finish.
TEST(MeasuredStep, OrdersJobsWithoutLengthByTheirDependencies) {
  Random random(6);
  for (int round = 0; round < 200 && !HasFailure(); ++round) {
    const Schedule schedule = testing::random_schedule(random);
    const RecordedStep step = simulated_step(schedule, with_known_copies({.durations = {{0, 0, 0}}}));
    EXPECT_NO_THROW(measured_step(schedule, runs_of(schedule, step.timeline)));
  }
}

TEST(StepCosts, AreMediansOverStepsOfMeansInAStep) {
  const Schedule schedule = named("gpipe", 2, 2);
  StepCosts costs;
  for (const double slow : {1.0, 10.0, 2.0}) {
    JobTimes times;
    for (JobId id = 0; id < schedule.id_count(); ++id) {
      const Job job = schedule.job(id);
      times.duration.push_back(slow * (1 + job.stage) * (job.pass == Pass::F ? 1 : 3) + job.microbatch);
      times.transfer.push_back(slow / 2);
    }
    costs.add(simulated_step(schedule, {}, times));
  }
  const Costs found = costs.costs();
  ASSERT_EQ(found.durations.size(), 2U);
  EXPECT_EQ(found.durations[0], (Durations{.F = 2.5, .B = 6.5, .W = 0}));
  EXPECT_EQ(found.durations[1], (Durations{.F = 4.5, .B = 12.5, .W = 0}));
  EXPECT_EQ(found.link(0, 1).alpha, 1);
  EXPECT_EQ(found.link(0, 1).beta, 0);
}

/// Two links, one of them slow: the other is typical, whichever has more observed transfers.
TEST(StepCosts, HaveTheTimeOfATypicalLink) {
  const Schedule schedule = named("1f1b", 2, 6);
  for (const int slow : {0, 1}) {
    JobTimes times;
    times.transfer.assign(schedule.id_count(), 0.25);
    for (const JobId id : schedule.order()) {
      if (schedule.compute(id) == slow) times.transfer[id] = 4;
    }
    const RecordedStep step = simulated_step(schedule, {.durations = {{1, 2, 0}}}, times);
    StepCosts costs;
    costs.add(step);
    EXPECT_EQ(costs.costs().link(0, 1).alpha, 0.25);
    EXPECT_GT(part_of(difference(step, costs.costs()), "transfers"), 0);
  }
}

TEST(StepCosts, TellBFromW) {
  const Schedule schedule = named("zb-h1", 2, 4);
  StepCosts costs;
  costs.add(simulated_step(schedule, {.durations = {{1, 2, 3}}, .links = Link{.alpha = 0.5}}));
  EXPECT_EQ(costs.costs().duration(1), (Durations{.F = 1, .B = 2, .W = 3}));
  EXPECT_EQ(costs.costs().link(0, 1).alpha, 0.5);
}

}  // namespace
}  // namespace starpipe::plan
