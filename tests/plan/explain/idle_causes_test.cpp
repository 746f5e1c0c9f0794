// SPDX-License-Identifier: Apache-2.0
// Why workers idled, and the critical path.
#include "plan/explain/idle_causes.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "plan/explain/critical_path.hpp"
#include "plan/explain/random_steps.hpp"
#include "starpipe/plan/simulate/simulate.hpp"
#include "support/rounds.hpp"
#include "support/schedules.hpp"

namespace starpipe::plan {
namespace {

using testing::Random;

double last_end(const Timeline& timeline) {
  double last = 0;
  for (const Span& span : timeline.spans) last = std::max(last, span.end);
  return last;
}

/// A measured step with every disturbance, or a simulated one. With `skewed` the clocks of the workers
/// differ.
RecordedStep random_step(Random& random, bool skewed) {
  const Schedule schedule = testing::random_schedule(random);
  if (testing::chance(random, 0.3)) {
    return simulated_step(schedule, testing::random_costs(random, schedule.stages()));
  }
  const Schedule as_run =
      testing::chance(random, 0.5) ? testing::elsewhere(random, schedule) : ordered_as_simulated(schedule);
  auto runs = testing::random_run(random, as_run, {.submission = 20, .delay = 2});
  std::vector<double> skew(index(schedule.workers()));
  for (double& each : skew) each = testing::between(random, 0, skewed ? 8 : 0) / 4.0;
  for (JobRun& run : runs) {
    for (double* time : {&run.submitted, &run.ready, &run.start, &run.end}) *time += skew[index(run.worker)];
  }
  Costs costs;
  costs.prefetch = testing::chance(random, 0.8);
  if (!costs.prefetch) {
    for (JobRun& run : runs) run.ready = run.start;
  }
  return measured_step(schedule, runs, costs);
}

void expect_that_parts_fill_the_step(const RecordedStep& step, const std::vector<IdlePart>& parts) {
  const double begin = first_start(step.timeline);
  for (int worker = 0; worker < step.as_run.workers(); ++worker) {
    std::vector<Span> pieces;
    for (const JobId id : step.timeline.order[index(worker)]) pieces.push_back(step.timeline.spans[id]);
    for (const IdlePart& part : parts) {
      if (part.worker != worker) continue;
      EXPECT_LT(part.start, part.end);
      pieces.push_back({part.start, part.end});
    }
    std::ranges::stable_sort(pieces, {}, [](const Span& span) { return std::pair(span.start, span.end); });
    double at = begin;
    for (const Span& piece : pieces) {
      ASSERT_EQ(piece.start, at) << "worker " << worker << "\n" << testing::describe(step);
      at = piece.end;
    }
    EXPECT_EQ(at, last_end(step.timeline));
  }
}

TEST(IdleParts, FillTheTimeBetweenTheJobs) {
  Random random(11);
  for (int round = 0; round < rounds(1500) && !HasFatalFailure(); ++round) {
    const RecordedStep step = random_step(random, round % 3 == 0);
    const auto parts = idle_parts(step);
    expect_that_parts_fill_the_step(step, parts);
    const auto seconds = idle_seconds(parts, step.as_run.workers());
    for (std::size_t w = 0; w < seconds.size(); ++w) {
      const double idle = std::accumulate(seconds[w].begin(), seconds[w].end(), 0.0);
      EXPECT_EQ(idle + step.timeline.busy[w], step.timeline.makespan);
    }
  }
}

/// Checks the cause of each part against the jobs of the step.
TEST(IdleParts, HaveTheirCauses) {
  Random random(12);
  std::map<IdleCause, int> seen;
  for (int round = 0; round < rounds(1500) && !HasFailure(); ++round) {
    const RecordedStep step = random_step(random, false);
    if (!step.prefetch) continue;
    SCOPED_TRACE(testing::describe(step));
    const auto& spans = step.timeline.spans;
    const auto& ready = step.timeline.ready;
    const auto delays_b = [&](JobId id, double time) {
      const Job job = step.as_run.job(id);
      if (job.pass != Pass::R) return false;
      bool delays = true;
      for (const int s : step.as_run.graph().succ(job.stage))
        delays = delays && spans[step.as_run.backward(s, job.microbatch)].end <= time;
      return delays;
    };
    const auto runs_r = [&](int worker, const IdlePart& at) {
      return std::ranges::any_of(step.timeline.order[index(worker)], [&](JobId id) {
        const double from = std::max(spans[id].start, at.start);
        return from < std::min(spans[id].end, at.end) && delays_b(id, from);
      });
    };
    for (const IdlePart& part : idle_parts(step)) {
      SCOPED_TRACE(std::string(to_string(part.cause)) + " on " + std::to_string(part.worker) + " " +
                   std::to_string(part.start) + ".." + std::to_string(part.end));
      ++seen[part.cause];
      std::vector<JobId> before;
      std::vector<JobId> after;
      for (const JobId id : step.timeline.order[index(part.worker)]) {
        (spans[id].start >= part.end ? after : before).push_back(id);
      }
      ASSERT_EQ(part.cause == IdleCause::drain, after.empty());
      if (after.empty()) continue;
      const JobId next = after.front();
      ASSERT_EQ(part.next, next);
      std::map<JobId, double> producers;  // on other workers, with their ends
      step.as_run.for_each_pred(next, [&](JobId id) {
        const bool copies = is_copy(step.as_run.job(id).pass);
        if (!copies && step.as_run.compute(id) != part.worker) producers[id] = spans[id].end;
      });
      const auto has_ended = [&](const auto& producer) { return producer.second <= part.start; };
      const bool all_ended = std::ranges::all_of(producers, has_ended);
      const bool another_ready =
          std::any_of(after.begin() + 1, after.end(), [&](JobId id) { return ready[id] <= part.start; });
      if (ready[next] <= part.start) {
        EXPECT_EQ(part.cause, IdleCause::runtime);
        continue;
      }
      if (part.cause != IdleCause::recomputation) {
        EXPECT_EQ(part.cause == IdleCause::order, another_ready);
      }
      switch (part.cause) {
        case IdleCause::fill:
        case IdleCause::producer:
          EXPECT_EQ(part.cause == IdleCause::fill, before.empty());
          ASSERT_TRUE(part.producer && producers.contains(*part.producer));
          EXPECT_GE(producers[*part.producer], part.end);
          EXPECT_FALSE(runs_r(step.as_run.compute(*part.producer), part));
          break;
        case IdleCause::recomputation:
          EXPECT_FALSE(all_ended);
          ASSERT_TRUE(part.producer);
          EXPECT_TRUE(delays_b(*part.producer, part.start));
          EXPECT_NE(step.as_run.compute(*part.producer), part.worker);
          EXPECT_LE(spans[*part.producer].start, part.start);
          EXPECT_GE(spans[*part.producer].end, part.end);
          break;
        case IdleCause::transfer:
          EXPECT_TRUE(all_ended);
          EXPECT_NE(part.from, part.worker);
          EXPECT_GT(step.transfer[next], 0);
          EXPECT_LE(part.end - part.start, step.transfer[next]);
          break;
        case IdleCause::order:
          ASSERT_TRUE(part.held_back && std::ranges::count(after, *part.held_back) == 1);
          EXPECT_NE(*part.held_back, next);
          EXPECT_LE(ready[*part.held_back], part.start);
          break;
        case IdleCause::copy:
          EXPECT_TRUE(all_ended);
          ASSERT_TRUE(part.producer);
          EXPECT_TRUE(is_copy(step.as_run.job(*part.producer).pass));
          EXPECT_TRUE(step.as_run.ends(*part.producer).first == part.worker ||
                      step.as_run.ends(*part.producer).second == part.worker);
          EXPECT_GE(spans[*part.producer].end, part.end);
          break;
        case IdleCause::runtime:
          EXPECT_TRUE(all_ended);
          break;
        case IdleCause::drain:
          FAIL() << "a job follows";
      }
    }
  }
  EXPECT_EQ(seen.size(), idle_cause_count) << "each cause occurs";
}

/// A simulated run has no runtime, and a greedy one holds nothing back.
TEST(IdleParts, OfSimulatedStepsAreNotTheRuntimes) {
  Random random(13);
  for (int round = 0; round < rounds(1000) && !HasFailure(); ++round) {
    const Schedule schedule = testing::random_schedule(random);
    const RecordedStep step = simulated_step(schedule, testing::random_costs(random, schedule.stages()));
    for (const IdlePart& part : idle_parts(step)) {
      EXPECT_NE(part.cause, IdleCause::runtime) << step.prefetch << "\n" << testing::describe(step);
      if (schedule.discipline() == Discipline::greedy) {
        EXPECT_NE(part.cause, IdleCause::order);
      }
    }
  }
}

TEST(IdleParts, Of1F1BByHand) {
  const Schedule schedule = named("1f1b", 2, 2);
  // Worker 0: F0 0..1, F1 1..2, BW0 5..7, BW1 8..10. Worker 1: F0 1.5..2.5, BW0 2.5..4.5, F1 4.5..5.5,
  // BW1 5.5..7.5.
  const RecordedStep step = simulated_step(schedule, {.durations = {{1, 2, 0}}, .links = Link{.alpha = 0.5}});
  const auto parts = idle_parts(step);
  ASSERT_EQ(parts.size(), 7U);
  const auto expect = [&](std::size_t i, int worker, double start, double end, IdleCause cause) {
    EXPECT_EQ(parts[i].worker, worker) << i;
    EXPECT_EQ(parts[i].start, start) << i;
    EXPECT_EQ(parts[i].end, end) << i;
    EXPECT_EQ(parts[i].cause, cause) << i;
  };
  expect(0, 0, 2, 4.5, IdleCause::producer);
  expect(1, 0, 4.5, 5, IdleCause::transfer);
  expect(2, 0, 7, 7.5, IdleCause::producer);
  expect(3, 0, 7.5, 8, IdleCause::transfer);
  expect(4, 1, 0, 1, IdleCause::fill);
  expect(5, 1, 1, 1.5, IdleCause::transfer);
  expect(6, 1, 7.5, 10, IdleCause::drain);
  EXPECT_EQ(parts[0].producer, schedule.backward(1, 0));
  const auto producers = producer_waits(parts, step);
  // From 2 to 2.5 worker 1 still runs F.
  ASSERT_EQ(producers.size(), 2U);
  EXPECT_EQ(producers[0].stage, 1);
  EXPECT_EQ(producers[0].pass, Pass::BW);
  EXPECT_EQ(producers[0].worker, 1);
  EXPECT_EQ(producers[0].seconds, 2.5);
  EXPECT_EQ(producers[1].pass, Pass::F);
  EXPECT_EQ(producers[1].seconds, 0.5);
  const auto links = link_waits(parts);
  ASSERT_EQ(links.size(), 2U);
  EXPECT_EQ(links[0].from, 1);
  EXPECT_EQ(links[0].to, 0);
  EXPECT_EQ(links[0].seconds, 1);
  EXPECT_EQ(links[1].seconds, 0.5);
}

TEST(IdleParts, OfARecomputationByHand) {
  const std::vector<Home> homes = {Home::worker, Home::none};
  const Schedule schedule = named("1f1b", 2, 1).with_homes(homes);
  // Worker 0: F 0..1, BW 5..7. Worker 1: F 1..2, R 2..3, BW 3..5.
  const RecordedStep step = simulated_step(schedule, {.durations = {{1, 2, 0}}});
  const auto parts = idle_parts(step);
  ASSERT_EQ(parts.size(), 5U);
  for (const auto& [i, start, end, cause] : {std::tuple(0U, 1, 2, IdleCause::producer),
                                             {1U, 2, 3, IdleCause::recomputation},
                                             {2U, 3, 5, IdleCause::producer}}) {
    EXPECT_EQ(parts[i].worker, 0);
    EXPECT_EQ(parts[i].start, start);
    EXPECT_EQ(parts[i].end, end);
    EXPECT_EQ(parts[i].cause, cause);
  }
  EXPECT_EQ(parts[1].producer, schedule.recomputation(1, 0));
  std::map<Pass, double> waited;
  for (const ProducerWait& wait : producer_waits(parts, step)) waited[wait.pass] = wait.seconds;
  EXPECT_EQ(waited, (std::map<Pass, double>{{Pass::F, 1}, {Pass::R, 1}, {Pass::BW, 2}}));
}

/// Worker 1 computes F again in a bubble. So worker 0 does not wait for it, but for worker 2.
TEST(IdleParts, OfARecomputationBehindABubble) {
  const Schedule schedule = named("1f1b", 3, 1).with_recomputation();
  using Waits = std::map<int, std::pair<double, double>>;
  const auto waits = [&](const std::vector<Durations>& durations) {
    Waits found;
    for (const IdlePart& part : idle_parts(simulated_step(schedule, {.durations = durations}))) {
      if (part.cause == IdleCause::recomputation) found[part.worker] = {part.start, part.end};
    }
    return found;
  };
  // Worker 1: F 1..2, R 2..3. Worker 2: F 2..3, R 3..4, BW 4..6.
  EXPECT_EQ(waits({{1, 2, 0}}), (Waits{{0, {3, 4}}, {1, {3, 4}}}));
  // Worker 1: F 1..5, R 5..9. Worker 2: F 5..6, R 6..7, BW 7..9.
  EXPECT_EQ(waits({{1, 2, 0}, {4, 2, 0}, {1, 2, 0}}), (Waits{{0, {6, 7}}}));
}

/// Each stage waits for the next, but only one is slow.
TEST(ProducerWaits, NameTheSlowStageAndNotThoseThatWaitForIt) {
  const Schedule schedule = named("gpipe", 4, 4);
  Costs costs;
  costs.durations = {{1, 2, 0}, {1, 2, 0}, {1, 10, 0}, {1, 2, 0}};
  const RecordedStep step = simulated_step(schedule, costs);
  const auto waits = producer_waits(idle_parts(step), step);
  ASSERT_FALSE(waits.empty());
  EXPECT_EQ(waits[0].stage, 2);
  EXPECT_EQ(waits[0].pass, Pass::BW);
  EXPECT_EQ(waits[0].worker, 2);
  // Stage 2 runs BW from 9 to 49. Meanwhile worker 1 runs BW for 2 after each of the first three, and worker
  // 0 after these.
  EXPECT_EQ(waits[0].seconds, 2 * (40 - 3 * 2) - 3 * 2);
}

/// Under 1F1B the workers before a slow last stage have other forward passes ready: the order holds them
/// back.
TEST(ProducerWaits, NameTheSlowStageWhereTheOrderHoldsJobsBack) {
  const Schedule schedule = named("1f1b", 4, 8);
  Costs costs;
  costs.durations = {{1, 2, 0}, {1, 2, 0}, {1, 2, 0}, {6, 2, 0}};
  const RecordedStep step = simulated_step(schedule, costs);
  const auto waits = producer_waits(idle_parts(step), step);
  ASSERT_FALSE(waits.empty());
  EXPECT_EQ(waits[0].stage, 3);
  EXPECT_EQ(waits[0].pass, Pass::F);
}

/// Against the definition, in the middle between the times at which something begins or ends.
TEST(ProducerWaits, CountTheJobThatRunsMeanwhile) {
  Random random(16);
  for (int round = 0; round < rounds(300) && !HasFailure(); ++round) {
    const RecordedStep step = random_step(random, false);
    const auto parts = idle_parts(step);
    const auto& spans = step.timeline.spans;
    std::map<std::tuple<int, Pass, int>, double> expected;
    std::set<double> times;
    for (const Span& span : spans) times.insert({span.start, span.end});
    for (const IdlePart& part : parts) times.insert({part.start, part.end});
    const auto part_at = [&](int worker, double time) {
      return std::ranges::find_if(parts, [&](const IdlePart& part) {
        return part.worker == worker && part.start < time && time < part.end;
      });
    };
    for (auto to = std::next(times.begin()); to != times.end(); ++to) {
      const double from = *std::prev(to);
      const double middle = (from + *to) / 2;
      for (int worker = 0; worker < step.as_run.workers(); ++worker) {
        auto part = part_at(worker, middle);
        if (part == parts.end() || !part->producer) continue;
        constexpr std::array counted = {IdleCause::producer, IdleCause::order, IdleCause::recomputation};
        if (std::ranges::count(counted, part->cause) == 0) continue;
        int at = worker;
        while (part != parts.end() && part->cause != IdleCause::transfer && part->cause != IdleCause::copy &&
               part->producer) {
          at = step.as_run.compute(*part->producer);
          part = part_at(at, middle);
        }
        if (part != parts.end()) continue;
        const auto& row = step.timeline.order[index(at)];
        const auto runs = [&](JobId id) { return spans[id].start < middle && middle < spans[id].end; };
        const auto job = std::ranges::find_if(row, runs);
        ASSERT_NE(job, row.end());
        const Job kind = step.as_run.job(*job);
        expected[{kind.stage, kind.pass, at}] += *to - from;
      }
    }
    std::map<std::tuple<int, Pass, int>, double> found;
    for (const ProducerWait& wait : producer_waits(parts, step)) {
      found[{wait.stage, wait.pass, wait.worker}] = wait.seconds;
    }
    EXPECT_EQ(found, expected) << testing::describe(step);
  }
}

TEST(CriticalPath, LeadsFromTheBeginToTheEnd) {
  Random random(14);
  for (int round = 0; round < rounds(1500) && !HasFailure(); ++round) {
    const RecordedStep step = random_step(random, round % 3 == 0);
    const auto path = critical_path(step);
    double at = first_start(step.timeline);
    for (const PathPart& part : path) {
      EXPECT_EQ(part.start, at) << testing::describe(step);
      EXPECT_LT(part.start, part.end);
      EXPECT_EQ(part.kind == PathPart::Kind::transfer, part.from >= 0);
      at = part.end;
    }
    EXPECT_EQ(at, last_end(step.timeline));
    const PathSummary sums = summary(path, step.as_run);
    double total = sums.runtime;
    for (const auto& jobs : sums.jobs) total += jobs.seconds;
    for (const LinkWait& link : sums.links) total += link.seconds;
    EXPECT_EQ(total, step.timeline.makespan);
  }
}

/// Whatever is on the path makes the step longer when it takes longer, by as much.
TEST(CriticalPath, DelaysTheStep) {
  Random random(15);
  for (int round = 0; round < rounds(800) && !HasFailure(); ++round) {
    const Schedule schedule = testing::random_schedule(random);
    Costs costs = testing::random_costs(random, schedule.stages());
    costs.prefetch = true;
    const RecordedStep step = simulated_step(ordered_as_simulated(schedule, costs), costs);
    for (const PathPart& part : critical_path(step)) {
      EXPECT_NE(part.kind, PathPart::Kind::runtime) << testing::describe(step);
      JobTimes times = step.times(true);
      auto& changed = part.kind == PathPart::Kind::transfer ? times.transfer : times.duration;
      changed[part.job] += 1;
      EXPECT_GE(last_end(simulate(step.as_run, costs, times)), last_end(step.timeline) + 1)
          << to_string(step.as_run.job(part.job)) << "\n"
          << testing::describe(step);
    }
  }
}

TEST(CriticalPath, NamesTheSlowStage) {
  const Schedule schedule = named("1f1b", 4, 16);
  Costs costs;
  costs.durations = {{1, 2, 0}, {1, 2, 0}, {2, 4, 0}, {1, 2, 0}};
  costs.links = Link{.alpha = 0.25};
  const RecordedStep step = simulated_step(schedule, costs);
  const PathSummary sums = summary(critical_path(step), step.as_run);
  EXPECT_EQ(sums.jobs[0].stage, 2);
  EXPECT_EQ(sums.jobs[0].pass, Pass::BW);
  EXPECT_EQ(sums.jobs[0].worker, 2);
  EXPECT_EQ(sums.jobs[0].count, 16);
  EXPECT_EQ(sums.jobs[0].seconds, 64);
  EXPECT_EQ(sums.runtime, 0);
}

}  // namespace
}  // namespace starpipe::plan
