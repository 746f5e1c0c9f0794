// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/schedule/check.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/slow_reference.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/simulate/costs.hpp"
#include "starpipe/plan/simulate/simulate.hpp"
#include "support/random_schedules.hpp"
#include "support/rounds.hpp"

namespace starpipe::plan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Passes tokens until nothing moves: a worker takes the next job of its own list once every job that it
/// reads from is done. Without an order any job may go.
bool token_passing_finishes(const Schedule& schedule) {
  std::vector<bool> done(schedule.id_count());
  std::vector<std::vector<JobId>> lists(index(schedule.workers()));
  for (const JobId id : schedule.order()) lists[index(schedule.compute(id))].push_back(id);
  std::size_t left = schedule.job_count();
  for (bool moved = true; moved;) {
    moved = false;
    for (auto& list : lists) {
      for (auto at = list.begin(); at != list.end();) {
        bool free = true;
        schedule.for_each_pred(*at, [&](JobId before) { free = free && done[before]; });
        if (free) {
          done[*at] = true;
          at = list.erase(at);
          --left;
          moved = true;
        } else if (schedule.discipline() == Discipline::ordered) {
          break;
        } else {
          ++at;
        }
      }
    }
  }
  return left == 0;
}

bool waits_for(const Schedule& schedule, const Job& after, const Job& before) {
  const JobId id = *schedule.find(after);
  const JobId other = *schedule.find(before);
  bool found = false;
  schedule.for_each_pred(id, [&](JobId p) { found = found || p == other; });
  return found ||
         (schedule.compute(id) == schedule.compute(other) && schedule.turn(other) < schedule.turn(id));
}

ScheduleSpec one_worker_a_stage(int stages, int microbatches) {
  ScheduleSpec spec;
  spec.name = "test";
  spec.graph = StageGraph::chain(stages);
  spec.microbatches = microbatches;
  spec.workers = stages;
  spec.placement = [](const Job& j) { return Placement{j.stage, j.stage}; };
  spec.priority = [](const Job& j) { return j.pass == Pass::F ? 0 : 1; };
  return spec;
}

TEST(Check, AcceptsExactlyTheSchedulesThatFinish) {
  testing::Random random(2);
  int accepted = 0, refused = 0;
  for (int round = 0; round < rounds(4000); ++round) {
    testing::Options options;
    options.sound_priority = 0.3;
    const Schedule schedule(testing::random_spec(random, options));
    const CheckResult result = check(schedule);

    ASSERT_EQ(result.ok(), token_passing_finishes(schedule)) << "round " << round << ": " << result.problem;
    ASSERT_EQ(result.ok(), testing::slow_simulate(schedule, {}).finished) << "round " << round;
    // Greedy workers finish everything that they may run.
    ASSERT_EQ(check(schedule.with(Discipline::greedy)).problem, "");
    if (result.ok()) {
      ++accepted;
      EXPECT_THAT(result.cycle, IsEmpty());
      continue;
    }
    ++refused;
    ASSERT_GE(result.cycle.size(), 2U);
    for (std::size_t i = 0; i < result.cycle.size(); ++i) {
      const Job& before = result.cycle[i == 0 ? result.cycle.size() - 1 : i - 1];
      EXPECT_TRUE(waits_for(schedule, result.cycle[i], before))
          << to_string(result.cycle[i]) << " does not wait for " << to_string(before) << "\n"
          << result.problem;
      EXPECT_EQ(std::ranges::count(result.cycle, before), 1);
    }
    EXPECT_THAT(result.problem, HasSubstr(to_string(result.cycle.front())));
    EXPECT_EQ(result.problem.find('\n'), std::string::npos);
    EXPECT_THROW(topological_order(schedule), InputError);
  }
  EXPECT_GT(accepted, rounds(500));
  EXPECT_GT(refused, rounds(500));
}

TEST(Check, TopologicalOrderIsOneAndPrefersSmallN) {
  testing::Random random(3);
  int tried = 0;
  for (int round = 0; round < rounds(1000); ++round) {
    Schedule schedule(testing::random_spec(random));
    if (testing::chance(random, 0.3)) schedule = schedule.with(Discipline::greedy);
    if (!check(schedule).ok()) continue;
    ++tried;
    const auto order = topological_order(schedule);
    ASSERT_EQ(order.size(), schedule.job_count());

    // At each step the smallest n comes first among all jobs that wait for nothing.
    std::vector<bool> done(schedule.id_count());
    for (const JobId id : order) {
      std::optional<JobId> best;
      for (const JobId other : schedule.order()) {
        if (done[other]) continue;
        bool free = true;
        schedule.for_each_pred(other, [&](JobId before) { free = free && done[before]; });
        if (schedule.discipline() == Discipline::ordered) {
          for (const JobId mine : schedule.order(schedule.compute(other))) {
            if (schedule.turn(mine) < schedule.turn(other)) free = free && done[mine];
          }
        }
        if (free) {
          best = other;
          break;  // order() ascends by n
        }
      }
      ASSERT_TRUE(best);
      ASSERT_EQ(to_string(schedule.job(id)), to_string(schedule.job(*best)));
      done[id] = true;
    }
  }
  EXPECT_GT(tried, rounds(500));
}

TEST(Check, BoundedSchedulesFinishWithinTheirLimitsWhateverTheTiming) {
  testing::Random random(4);
  int refused = 0;
  for (int round = 0; round < rounds(60); ++round) {
    testing::Options options;
    options.one_worker_a_stash = true;
    options.max_stages = 4;
    options.max_microbatches = 5;
    options.max_workers = 4;
    options.sound_priority = 0.4;
    const Schedule jobs(testing::random_spec(random, options));
    std::vector<int> limits = testing::random_limits(random, jobs);
    {
      // A limit of one less than the largest number of stages of one micro-batch on a worker is refused, and
      // the message names the worker.
      std::vector<int> fewer = limits;
      const auto w = index(testing::between(random, 0, jobs.workers() - 1));
      int max = jobs.recomputes_all() ? 1 : 0;
      for (int b = 0; b < jobs.microbatches() && !jobs.recomputes_all(); ++b) {
        int here = 0;
        for (int s = 0; s < jobs.stages(); ++s) {
          here += jobs.compute(jobs.stash_maker(s, b)) == static_cast<int>(w) ? 1 : 0;
        }
        max = std::max(max, here);
      }
      fewer[w] = max - 1;
      if (max > 0) {
        const auto result = check(jobs.with(Discipline::bounded, fewer));
        EXPECT_FALSE(result.ok());
        EXPECT_THAT(result.cycle, IsEmpty());
        EXPECT_THAT(result.problem, HasSubstr("worker " + std::to_string(w)));
        ++refused;
      }
    }
    const Schedule schedule = jobs.with(Discipline::bounded, limits);
    ASSERT_EQ(check(schedule).problem, "") << "round " << round;
    // With recomputation one stash per worker is enough.
    const Schedule recomputing =
        jobs.with_recomputation().with(Discipline::bounded, std::vector<int>(index(jobs.workers()), 1));
    ASSERT_EQ(check(recomputing).problem, "") << "round " << round;
    for (int timing = 0; timing < 20; ++timing) {
      const Costs costs = testing::random_costs(random, jobs.stages());
      ASSERT_TRUE(testing::slow_simulate(recomputing, costs).finished) << "round " << round;
      for (const int peak : simulate(recomputing, costs).peak_stashes) ASSERT_LE(peak, 1);
    }
    for (int timing = 0; timing < 200; ++timing) {
      const Costs costs = testing::random_costs(random, schedule.stages());
      const auto run = testing::slow_simulate(schedule, costs);
      ASSERT_TRUE(run.finished) << "round " << round << " timing " << timing;
      for (const JobId at : schedule.order()) {
        const double now = run.picked[at];
        const int w = schedule.compute(at);
        int live = 0;
        for (int b = 0; b < schedule.microbatches(); ++b) {
          for (int s = 0; s < schedule.stages(); ++s) {
            const JobId f = schedule.stash_maker(s, b);
            live += schedule.compute(f) == w && run.picked[f] <= now &&
                            run.spans[schedule.weight_gradient(s, b)].end > now
                        ? 1
                        : 0;
          }
        }
        ASSERT_LE(live, limits[index(w)]) << "round " << round;
      }
    }
  }
  EXPECT_GT(refused, rounds(20));
}

TEST(Check, NamesTheJobAndTheWorkerThatDoesNotExist) {
  auto spec = one_worker_a_stage(3, 2);
  spec.placement = [](const Job& j) { return Placement{j.stage, j == Job{1, 1, Pass::BW} ? 3 : j.stage}; };
  EXPECT_THAT(check(Schedule(spec)).problem, AllOf(HasSubstr("BW(1,1)"), HasSubstr("worker 3")));

  spec.placement = [](const Job& j) { return Placement{j == Job{2, 0, Pass::F} ? -1 : j.stage, j.stage}; };
  EXPECT_THAT(check(Schedule(spec)).problem,
              AllOf(HasSubstr("F(2,0)"), HasSubstr("worker -1"), HasSubstr("weights")));
  EXPECT_THROW(topological_order(Schedule(spec)), InputError);
}

TEST(Check, NamesTheShortestDeadlock) {
  // Worker 0 wants its backward pass before its forward pass.
  auto spec = one_worker_a_stage(1, 1);
  spec.priority = [](const Job& j) { return j.pass == Pass::F ? 1 : 0; };
  const auto result = check(Schedule(spec));

  EXPECT_EQ(result.cycle.size(), 2U);
  EXPECT_THAT(result.problem, AllOf(HasSubstr("F(0,0)"), HasSubstr("BW(0,0)")));
  EXPECT_TRUE(check(Schedule(spec).with(Discipline::greedy)).ok());
}

TEST(Check, DeadlockAcrossWorkersIsFound) {
  // Worker 0 sends micro-batch 0 and then 1. Worker 1 starts with 1, while worker 0 waits for the gradient of
  // 0.
  auto spec = one_worker_a_stage(2, 2);
  spec.priority = [](const Job& j) {
    if (j.stage == 0) return 2 * j.microbatch + (j.pass == Pass::F ? 0 : 1);
    return 2 * (1 - j.microbatch) + (j.pass == Pass::F ? 0 : 1);
  };
  EXPECT_FALSE(check(Schedule(spec)).ok());
  EXPECT_FALSE(check(Schedule(spec)).cycle.empty());
}

TEST(Check, OrderedScheduleMustKeepItsLimitsToo) {
  // All forward passes first: three stashes on each worker.
  const Schedule schedule(one_worker_a_stage(2, 3));

  EXPECT_EQ(check(schedule.with(Discipline::ordered, {3, 3})).problem, "");
  EXPECT_THAT(check(schedule.with(Discipline::ordered, {3, 2})).problem, HasSubstr("worker 1"));
  EXPECT_THAT(check(schedule.with(Discipline::ordered, {0, 3})).problem, HasSubstr("worker 0"));
}

TEST(Check, OrderedLimitsAgreeWithTheOrder) {
  testing::Random random(5);
  int accepted = 0, refused = 0;
  for (int round = 0; round < rounds(500); ++round) {
    testing::Options options;
    options.one_worker_a_stash = true;
    const Schedule jobs(testing::random_spec(random, options));
    if (!check(jobs).ok()) continue;
    const auto limits = testing::random_limits(random, jobs);
    bool holds = true;
    for (int w = 0; w < jobs.workers(); ++w) {
      int live = 0;
      for (const JobId id : jobs.order(w)) {
        const auto [s, b, pass] = jobs.job(id);
        live += id == jobs.stash_maker(s, b) ? 1 : 0;
        holds = holds && live <= limits[index(w)];
        live -= pass == Pass::W || pass == Pass::BW ? 1 : 0;
      }
    }
    const auto result = check(jobs.with(Discipline::ordered, limits));
    EXPECT_EQ(result.ok(), holds) << result.problem;
    (holds ? accepted : refused) += 1;
  }
  EXPECT_GT(accepted, rounds(50));
  EXPECT_GT(refused, rounds(50));
}

TEST(Check, RefusesLimitsWhenAStashMoves) {
  auto spec = one_worker_a_stage(2, 1);
  spec.placement = [](const Job& j) {
    const int worker = j.stage == 0 && j.pass == Pass::BW ? 1 : j.stage;
    return Placement{worker, worker};
  };
  spec.priority = [](const Job& j) { return j.pass == Pass::F ? j.stage : 9 - j.stage; };
  const Schedule schedule(spec);

  EXPECT_TRUE(check(schedule).ok());
  EXPECT_THAT(check(schedule.with(Discipline::bounded, {2, 2})).problem, HasSubstr("BW(0,0)"));
}

}  // namespace
}  // namespace starpipe::plan
