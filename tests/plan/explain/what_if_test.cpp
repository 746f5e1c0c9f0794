// SPDX-License-Identifier: Apache-2.0
// What is slow in a step, and the makespan that it would have had.
#include "plan/explain/what_if.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "plan/explain/random_steps.hpp"
#include "plan/explain/step_costs.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/plan/simulate/simulate.hpp"
#include "support/message_of.hpp"
#include "support/schedules.hpp"

namespace starpipe::plan {
namespace {

using testing::Random;

const std::vector<Durations> unknown_work = {Durations{}};

/// The times that `costs` gives to each job of a schedule.
JobTimes times_of(const Schedule& schedule, const Costs& costs) {
  JobTimes times;
  times.duration.resize(schedule.id_count());
  times.transfer.assign(schedule.id_count(), costs.link(0, 1).alpha);
  for (const JobId id : schedule.order()) {
    times.duration[id] = costs.duration(schedule.job(id).stage).of(schedule.job(id).pass);
  }
  return times;
}

/// Four equal stages in a chain, on four workers.
const Costs equal = {.durations = {{1, 2, 0}}, .links = Link{.alpha = 0.25}};

RecordedStep with_slow_stage(const Schedule& schedule, int stage, Pass pass, double factor) {
  JobTimes times = times_of(schedule, equal);
  for (const JobId id : schedule.order()) {
    const Job job = schedule.job(id);
    if (job.stage == stage && job.pass == pass) times.duration[id] *= factor;
  }
  return simulated_step(schedule, equal, times);
}

RecordedStep with_slow_link(const Schedule& schedule, int from, int to, double factor) {
  JobTimes times = times_of(schedule, equal);
  const Timeline timeline = simulate(schedule, equal);
  for (const JobId id : schedule.order()) {
    const bool slow = schedule.compute(id) == to && last_input(schedule, timeline, id).from == from;
    if (slow) times.transfer[id] *= factor;
  }
  return simulated_step(schedule, equal, times);
}

double answer(const RecordedStep& step, const std::string& text,
              const std::vector<Durations>& work = unknown_work) {
  return makespan_with(step, parse_what_if(text), work);
}

TEST(Slowness, NamesTheKernelThatWasSlowed) {
  for (const char* name : {"1f1b", "gpipe", "zb-h1"}) {
    const Schedule schedule = named(name, 4, 8);
    const RecordedStep step = with_slow_stage(schedule, 2, Pass::F, 3);
    const auto kernels = kernel_speeds(step, unknown_work);
    EXPECT_EQ(kernels.size(), schedule.split_backward() ? 12U : 8U);
    EXPECT_EQ(kernels[0].stage, 2);
    EXPECT_EQ(kernels[0].pass, Pass::F);
    EXPECT_EQ(kernels[0].worker, 2);
    EXPECT_EQ(kernels[0].jobs, 8);
    EXPECT_EQ(kernels[0].mean, 3);
    EXPECT_EQ(kernels[0].ratio, 3);
    EXPECT_EQ(kernels[1].ratio, 1);
  }
}

TEST(Slowness, ComparesTimesOfEqualWork) {
  const Schedule schedule = named("1f1b", 3, 4);
  const std::vector<Durations> work = {{10, 20, 10}, {40, 80, 40}, {10, 20, 10}};
  Costs costs;
  costs.durations = {{1, 3, 0}, {4, 24, 0}, {1, 3, 0}};
  const auto kernels = kernel_speeds(simulated_step(schedule, costs), work);
  EXPECT_EQ(kernels[0].stage, 1);
  EXPECT_EQ(kernels[0].pass, Pass::BW);
  EXPECT_EQ(kernels[0].ratio, 2);
  EXPECT_EQ(kernels[1].ratio, 1);
  EXPECT_THROW(kernel_speeds(simulated_step(schedule, costs), std::vector<Durations>(2)), InputError);
}

TEST(Slowness, OfOneKernelOfTwoIsToTheFasterOne) {
  const RecordedStep step = with_slow_stage(named("1f1b", 2, 4), 1, Pass::BW, 2);
  const auto kernels = kernel_speeds(step, unknown_work);
  EXPECT_EQ(kernels[0].stage, 1);
  EXPECT_EQ(kernels[0].ratio, 2);
  EXPECT_EQ(kernels[1].ratio, 1);
}

/// In data parallelism all workers run the same stages.
TEST(Slowness, NamesTheWorkerThatWasSlowed) {
  const Schedule schedule = named("ddp", 4, 8);
  JobTimes times = times_of(schedule, equal);
  for (const JobId id : schedule.order()) {
    if (schedule.compute(id) == 3) times.duration[id] *= 1.5;
  }
  const auto kernels = kernel_speeds(simulated_step(schedule, equal, times), unknown_work);
  for (const KernelSpeed& kernel : kernels) EXPECT_EQ(kernel.ratio, kernel.worker == 3 ? 1.5 : 1);
  EXPECT_EQ(kernels[0].worker, 3);
}

TEST(Slowness, NamesTheLinkThatWasSlowed) {
  const auto links = link_speeds(with_slow_link(named("1f1b", 4, 8), 2, 1, 6));
  EXPECT_EQ(links.size(), 6U);
  EXPECT_EQ(links[0].from, 2);
  EXPECT_EQ(links[0].to, 1);
  EXPECT_EQ(links[0].median, 1.5);
  EXPECT_EQ(links[0].ratio, 6);
  EXPECT_EQ(links[1].ratio, 1);
}

/// A run in which one thing was slow, and the same without it.
TEST(WhatIf, UndoesWhatWasDone) {
  for (const char* name : {"1f1b", "gpipe", "zb-h1"}) {
    SCOPED_TRACE(name);
    const Schedule schedule = named(name, 4, 8);
    const double usual = simulate(schedule, equal).makespan;
    const RecordedStep slow = with_slow_stage(schedule, 2, Pass::F, 4);
    EXPECT_GT(slow.timeline.makespan, usual);
    for (const char* text : {"stage.2.F=0.25x", "stage.2.F=median", "stage.2=median", "worker.2=median"}) {
      EXPECT_EQ(answer(slow, text), usual) << text;
    }
    const RecordedStep far = with_slow_link(schedule, 2, 1, 8);
    EXPECT_GT(far.timeline.makespan, usual);
    EXPECT_EQ(answer(far, "link.2-1=0.125x"), usual);
    EXPECT_EQ(answer(far, "comm=0"), simulate(schedule, {.durations = equal.durations}).makespan);
    const RecordedStep usual_step = simulated_step(schedule, equal);
    EXPECT_EQ(answer(usual_step, "comm=2x"),
              simulate(schedule, {.durations = equal.durations, .links = Link{.alpha = 0.5}}).makespan);
  }
}

TEST(WhatIf, WithoutAnEffectIsTheMeasuredMakespan) {
  Random random(21);
  for (int round = 0; round < 400 && !HasFailure(); ++round) {
    const Schedule schedule = testing::random_schedule(random);
    const Schedule as_run = testing::elsewhere(random, schedule);
    const RecordedStep step =
        measured_step(schedule, testing::random_run(random, as_run, {.submission = 9, .delay = 2}));
    EXPECT_EQ(answer(step, "comm=1x"), step.timeline.makespan);
    EXPECT_EQ(answer(step, "stage.0=1x"), step.timeline.makespan);
    EXPECT_EQ(answer(step, "runtime=1x"), step.timeline.makespan);
    EXPECT_EQ(answer(step, "runtime=0"), simulate(step.as_run, {}, step.times(true)).makespan);
    EXPECT_LE(answer(step, "comm=0"), step.timeline.makespan);
    EXPECT_LE(answer(step, "stage.0.F=0.5x"), step.timeline.makespan);
  }
}

TEST(WhatIf, TheMedianIsOfEqualWork) {
  const Schedule schedule = named("1f1b", 3, 4);
  const std::vector<Durations> work = {{1, 1, 1}, {3, 3, 3}, {1, 1, 1}};
  Costs costs;
  costs.durations = {{1, 2, 0}, {9, 18, 0}, {1, 2, 0}};
  Costs usual = costs;
  usual.durations[1] = {3, 6, 0};
  EXPECT_EQ(answer(simulated_step(schedule, costs), "worker.1=median", work),
            simulate(schedule, usual).makespan);
}

TEST(WhatIf, AnotherScheduleHasTheStepsOwnTimes) {
  const Schedule gpipe = named("gpipe", 4, 8);
  const Schedule zb = named("zb-h1", 4, 8);
  const Schedule one = named("1f1b", 4, 8);
  const RecordedStep step = simulated_step(gpipe, equal);
  EXPECT_EQ(makespan_under(step, one, unknown_work, "schedule=1f1b"), simulate(one, equal).makespan);
  EXPECT_FALSE(splits_fused_backward(step, one));
  // BW of 2 is divided as the work is.
  ASSERT_TRUE(splits_fused_backward(step, zb));
  const std::vector<Durations> work = {{1, 3, 1}};
  EXPECT_EQ(makespan_under(step, zb, work, "schedule=zb-h1"),
            simulate(zb, {.durations = {{1, 1.5, 0.5}}, .links = Link{.alpha = 0.25}}).makespan);
  // And B and W become one BW.
  const Costs split = {.durations = {{1, 1.5, 0.5}}, .links = Link{.alpha = 0.25}};
  const RecordedStep split_step = simulated_step(zb, split);
  EXPECT_FALSE(splits_fused_backward(split_step, one));
  EXPECT_EQ(makespan_under(split_step, one, work, "schedule=1f1b"), simulate(one, split).makespan);
}

TEST(WhatIf, AddsTheRuntimesPartToAnotherSchedule) {
  const Schedule schedule = named("1f1b", 4, 8);
  const RecordedStep usual = simulated_step(schedule, equal);
  std::vector<JobRun> runs;
  for (const JobId id : schedule.order()) {
    // Only the last job to start is late.
    const Span& span = usual.timeline.spans[id];
    const double late = span.end == usual.timeline.makespan ? 3 : 0;
    runs.push_back(
        {id, schedule.compute(id), 0, usual.timeline.ready[id], span.start + late, span.end + late});
  }
  const RecordedStep step = measured_step(schedule, runs);
  const Schedule gpipe = named("gpipe", 4, 8);
  EXPECT_EQ(makespan_under(step, gpipe, unknown_work, "schedule=gpipe"), simulate(gpipe, equal).makespan + 3);
}

TEST(WhatIf, RefusesTextsInOneLine) {
  const char* const bad[] = {"",
                             "comm",
                             "comm=",
                             "comm=half",
                             "comm=0.5",
                             "comm=-1x",
                             "comm=nanx",
                             "comm=infx",
                             "comm=median",
                             "comm.1=0",
                             "worker=0",
                             "worker.=0",
                             "worker.x=0",
                             "worker.-1=0",
                             "worker.1.F=0",
                             "stage.1.G=0",
                             "stage.1.F.2=0",
                             "link.1=0",
                             "link.1-2-3=0",
                             "link.-1=0",
                             "speed=2x",
                             "runtime=median",
                             "schedule=",
                             "worker.99999999999=0",
                             "=0"};
  for (const std::string text : bad) {
    const std::string found = message_of([&] { parse_what_if(text); });
    EXPECT_TRUE(found.starts_with("what-if " + text + ": ")) << text << "\n" << found;
    EXPECT_EQ(found.find('\n'), std::string::npos) << found;
  }
}

TEST(WhatIf, ReadsEveryForm) {
  const char* const good[] = {"comm=0",        "comm=0.5x",    "link.0-1=2x",    "worker.2=median",
                              "worker.2=0.5x", "stage.3=0.5x", "stage.3.F=0.5x", "stage.3.BW=median",
                              "runtime=0",     "runtime=0.5x", "schedule=zb-h1"};
  for (const std::string text : good) {
    EXPECT_NO_THROW(EXPECT_EQ(parse_what_if(text).text, text)) << text;
  }
  EXPECT_EQ(parse_what_if("stage.3.BW=median").pass, Pass::BW);
  EXPECT_FALSE(parse_what_if("stage.3.BW=median").factor);
  EXPECT_EQ(parse_what_if("comm=0").factor, 0);
  EXPECT_EQ(parse_what_if("schedule=zb-h1").schedule, "zb-h1");
}

TEST(WhatIf, RefusesWhatTheStepDoesNotHave) {
  const RecordedStep step = simulated_step(named("1f1b", 4, 8), equal);
  for (const std::string text :
       {"worker.4=0", "stage.4=0", "stage.1.W=0", "link.0-4=0", "link.0-2=0", "link.1-1=0"}) {
    const std::string found = message_of([&] { answer(step, text); });
    EXPECT_TRUE(found.starts_with("what-if " + text + ": ")) << found;
    EXPECT_EQ(found.find('\n'), std::string::npos) << found;
  }
  EXPECT_EQ(message_of([&] { makespan_under(step, named("1f1b", 3, 8), unknown_work, "schedule=x"); }),
            "what-if schedule=x: schedule 1f1b has 3 stages, the run 4");
}

}  // namespace
}  // namespace starpipe::plan
