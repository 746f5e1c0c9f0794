// SPDX-License-Identifier: Apache-2.0
// Pairs: F and a backward pass that a worker runs at once.
#include <algorithm>
#include <functional>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "plan/explain/critical_path.hpp"
#include "plan/explain/idle_causes.hpp"
#include "plan/explain/recorded_step.hpp"
#include "plan/search/lower_bound.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/formats/schedule_csv.hpp"
#include "starpipe/plan/formats/schedule_json.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/schedules/orders.hpp"
#include "starpipe/plan/simulate/simulate.hpp"
#include "support/message_of.hpp"
#include "support/schedules.hpp"

namespace starpipe::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Schedule named(const std::string& name, int workers, int microbatches) {
  return make_schedule(name, {.workers = workers, .microbatches = microbatches});
}

Costs with_overlap(Overlap overlap, Durations durations = {}) {
  return {.durations = {durations}, .overlap = overlap};
}

/// Two workers, three micro-batches; worker 0 runs F2 and BW0 at once, worker 1 F1 and BW0, and F2 and BW1.
Schedule small() {
  const std::vector<std::vector<Job>> rows = {{{0, 0, Pass::F},
                                               {0, 1, Pass::F},
                                               {0, 2, Pass::F},
                                               {0, 0, Pass::BW},
                                               {0, 1, Pass::BW},
                                               {0, 2, Pass::BW}},
                                              {{1, 0, Pass::F},
                                               {1, 1, Pass::F},
                                               {1, 0, Pass::BW},
                                               {1, 2, Pass::F},
                                               {1, 1, Pass::BW},
                                               {1, 2, Pass::BW}}};
  return in_order("small", StageGraph::chain(2), 3, rows,
                  {{0, 2, Pass::F}, {1, 1, Pass::F}, {1, 2, Pass::F}});
}

Span span_of_job(const Schedule& schedule, const Timeline& timeline, const Job& job) {
  return timeline.spans[schedule.find(job).value()];
}

TEST(Pairs, AreJobsOfAWorkerWithTheSameN) {
  const Schedule schedule = small();
  ASSERT_TRUE(schedule.has_pairs());
  const JobId f = schedule.forward(0, 2);
  const JobId bw = schedule.backward(0, 0);
  EXPECT_EQ(schedule.partner(f), bw);
  EXPECT_EQ(schedule.partner(bw), f);
  EXPECT_EQ(schedule.first_of_pair(bw), f);
  EXPECT_EQ(schedule.last_of_pair(f), bw);
  EXPECT_EQ(schedule.partner(schedule.forward(0, 0)), std::nullopt);
  EXPECT_EQ(schedule.last_of_pair(schedule.forward(0, 0)), schedule.forward(0, 0));
  const Schedule without = schedule.without_pairs();
  EXPECT_FALSE(without.has_pairs());
  EXPECT_EQ(without.partner(f), std::nullopt);
  EXPECT_NE(without, schedule);
  EXPECT_EQ(Schedule(schedule.spec()), schedule);
}

TEST(Pairs, NeedAnOrder) {
  ScheduleSpec spec = small().spec();
  spec.discipline = Discipline::greedy;
  EXPECT_EQ(message_of([&] { Schedule{spec}; }), "small: pairs need an ordered schedule; this one is greedy");
  EXPECT_FALSE(small().with(Discipline::greedy).has_pairs());
}

// F and BW alone take 2 and 4, at once 5. Worker 1: F0 from 2 to 4, F1 and BW0 from 4 to 9, F2 and BW1 from
// 12 to 17: F2 of worker 0 is there at 14 only, when its pair ends.
TEST(Pairs, EndTogetherAndWaitForEachOther) {
  const Schedule schedule = small();
  const Timeline timeline = simulate(schedule, with_overlap({.F_BW = 5}, {.F = 2, .B = 2, .W = 2}));
  const auto at = [&](const Job& job) { return span_of_job(schedule, timeline, job); };
  EXPECT_EQ(at({1, 1, Pass::F}).start, 4);
  EXPECT_EQ(at({1, 0, Pass::BW}).end, 9);
  // Worker 0 waits with F2 until the gradient of micro-batch 0 is there.
  EXPECT_EQ(at({0, 2, Pass::F}).start, 9);
  EXPECT_NEAR(at({0, 2, Pass::F}).end, 9 + 5.0 * 2 / 6, 1e-12);
  EXPECT_EQ(at({0, 0, Pass::BW}).start, at({0, 2, Pass::F}).end);
  EXPECT_NEAR(at({0, 0, Pass::BW}).end, 14, 1e-12);
  EXPECT_NEAR(at({1, 2, Pass::F}).start, 14, 1e-12);
  EXPECT_NEAR(at({1, 1, Pass::BW}).end, 19, 1e-12);
  EXPECT_NEAR(timeline.makespan, 19 + 4 + 4, 1e-12);
  EXPECT_NEAR(timeline.busy[0], 2 * 2 + 5 + 2 * 4, 1e-12);
  EXPECT_THAT(timeline.peak_stashes, ElementsAre(3, 2));
}

TEST(Pairs, FollowEachOtherWithoutACostOfTheirOwn) {
  for (const char* name : {"dualpipe", "dualpipe-v", "combined-1f1b"}) {
    const Schedule schedule = named(name, 4, 12);
    EXPECT_TRUE(schedule.has_pairs()) << name;
    EXPECT_EQ(simulate(schedule).makespan, simulate(schedule.without_pairs()).makespan) << name;
  }
}

// DeepSeek-V3 Technical Report, table 2: (PP / 2 - 1) (F&B + B - 3 W), with B of the whole backward pass. It
// holds for the worker that is idle longest, if F, B and W take the same time.
TEST(Pairs, DualPipeHasItsPublishedBubble) {
  for (const int workers : {4, 6, 8, 16}) {
    for (const auto& [pass, overlap] : {std::pair(1.0, 3.0), {1.0, 2.25}, {1.0, 2.0}, {3.0, 8.0}}) {
      const Schedule schedule = named("dualpipe", workers, 3 * workers);
      const Timeline timeline =
          simulate(schedule, with_overlap({.F_BW = overlap}, {.F = pass, .B = pass, .W = pass}));
      const double idle = timeline.makespan - *std::ranges::min_element(timeline.busy);
      EXPECT_NEAR(idle, (workers / 2.0 - 1) * (overlap + 2 * pass - 3 * pass), 1e-9)
          << workers << " workers, F&B " << overlap;
    }
  }
}

// With slots of one length, a micro-batch needs 2 S slots, of which no stage's F waits for a backward pass.
TEST(Pairs, CombinedHasNoBubbleBetweenPairs) {
  for (const int workers : {2, 3, 5}) {
    const int microbatches = 4 * workers;
    const Schedule schedule = named("combined-1f1b", workers, microbatches);
    const Timeline timeline = simulate(schedule, with_overlap({.F_BW = 2}, {.F = 1, .B = 1, .W = 1}));
    // Stage 0: 2 S - 1 F, pairs, and 2 S - 1 BW; its first pair waits for the F and BW of the stages behind.
    const int alone = 2 * workers - 1;
    EXPECT_NEAR(timeline.busy[0], alone * 3 + (microbatches - alone) * 2, 1e-9);
    for (int s = 0; s < workers; ++s) EXPECT_LE(timeline.peak_stashes[index(s)], 2 * (workers - s));
    EXPECT_LT(timeline.makespan, simulate(schedule).makespan);
  }
}

/// The starts of all jobs, from the definition: a pair is one job that waits for what both wait for.
double slow_makespan(const Schedule& schedule, const Costs& costs) {
  std::vector<double> end(schedule.id_count(), 0);
  double last = 0;
  // As many rounds as there are jobs are enough for the longest path.
  for (bool changed = true; changed;) {
    changed = false;
    for (int w = 0; w < schedule.workers(); ++w) {
      double free = 0;
      const auto row = schedule.order(w);
      for (std::size_t i = 0; i < row.size(); ++i) {
        std::vector<JobId> together = {row[i]};
        if (schedule.partner(row[i])) together.push_back(row[++i]);
        double time = 0;
        double start = free;
        for (const JobId id : together) {
          time += costs.duration(schedule.job(id)).of(schedule.job(id).pass);
          schedule.for_each_pred(id, [&](JobId before) {
            const bool sent = schedule.compute(before) != w;
            start = std::max(start, end[before] + (sent ? costs.link(0, 1).alpha : 0));
          });
        }
        if (together.size() > 1) time *= costs.overlap->factor;
        free = start + time;
        for (const JobId id : together) {
          changed = changed || free > end[id] + 1e-9;
          end[id] = free;
        }
        last = std::max(last, free);
      }
    }
  }
  return last;
}

/// The same rows, with random neighbours as pairs; nullopt where it could not finish.
std::optional<Schedule> paired_at_random(const Schedule& schedule, std::mt19937& random) {
  std::vector<std::vector<Job>> rows;
  std::set<Job> pairs;
  for (int w = 0; w < schedule.workers(); ++w) {
    auto& row = rows.emplace_back();
    for (const JobId id : schedule.order(w)) {
      const Job job = schedule.job(id);
      const bool may_join = !row.empty() && row.back().pass == Pass::F && gives_input_gradient(job.pass);
      if (may_join && random() % 3 > 0) pairs.insert(row.back());
      row.push_back(job);
    }
  }
  while (!pairs.empty()) {
    Schedule made = in_order("random", schedule.graph(), schedule.microbatches(), rows, pairs);
    const CheckResult result = check(made);
    if (result.ok()) return made;
    const auto bad = std::ranges::find_if(result.cycle, [&](const Job& job) { return pairs.contains(job); });
    if (bad == result.cycle.end()) return std::nullopt;
    pairs.erase(*bad);
  }
  return std::nullopt;
}

TEST(Pairs, SimulationEqualsItsDefinition) {
  std::mt19937 random(7);
  int compared = 0;
  for (int round = 0; round < 40; ++round) {
    for (const char* name :
         {"1f1b", "eager-1f1b", "zb-h1", "interleaved-1f1b", "v-half", "chimera", "dualpipe"}) {
      const std::optional<Schedule> schedule = paired_at_random(named(name, 4, 8), random);
      if (!schedule) continue;
      Costs costs = {.durations = {}, .overlap = Overlap{.factor = 1 - 0.3 * (random() % 100) / 100}};
      costs.links = Link{.alpha = (random() % 3) / 4.0};
      // The factor leaves no pair shorter than its longer job: both are alike.
      for (int s = 0; s < schedule->stages(); ++s) {
        const double time = 1 + (random() % 5) / 16.0;
        costs.durations.push_back({.F = time, .B = time, .W = 0.2});
      }
      ++compared;
      const Timeline timeline = simulate(*schedule, costs);
      EXPECT_NEAR(timeline.makespan, slow_makespan(*schedule, costs), 1e-6) << name;
      EXPECT_EQ(simulated_makespan(*schedule, costs), timeline.makespan) << name;
      EXPECT_LE(placement_bound(*schedule, costs), timeline.makespan * (1 + 1e-9)) << name;
      // All idle time has a cause, and the path fills the makespan.
      const RecordedStep step = simulated_step(*schedule, costs);
      double path = 0;
      for (const PathPart& part : critical_path(step)) {
        path += part.end - part.start;
        EXPECT_NE(part.kind, PathPart::Kind::runtime) << name;
      }
      EXPECT_NEAR(path, timeline.makespan, 1e-6) << name;
    }
  }
  EXPECT_GT(compared, 150);
}

// Orders with B and W apart may be shorter: they count in a bound of all schedules.
TEST(Pairs, TheBoundOfAllSchedulesLetsPassesSplit) {
  const Schedule fused = named("1f1b", 4, 8);
  const double split = simulate(named("zb-h1", 4, 8)).makespan;
  for (const Overlap overlap : {Overlap{.factor = 1}, Overlap{.F_BW = 2.5}, Overlap{.F_B = 1.5}}) {
    const double bound = placement_bound(with_split_passes(fused), with_overlap(overlap));
    EXPECT_LE(bound, split);
    EXPECT_GT(bound, 8 * 1.5);
  }
}

TEST(Pairs, TimesOfSharesAreDivided) {
  const Costs stages = costs_of_stages(with_overlap({.factor = 0.9, .F_B = 1.5, .F_BW = 2.5}), 4, 8);
  EXPECT_EQ(stages.overlap, (Overlap{.factor = 0.9, .F_B = 0.75, .F_BW = 1.25}));
}

TEST(Pairs, OnPortsThatTransfersShareResultsLeaveTogether) {
  const Schedule schedule = small();
  Costs costs = with_overlap({.F_BW = 5}, {.F = 2, .B = 2, .W = 2});
  costs.sizes = {{.activation = 10, .gradient = 10}};
  costs.links = Links(std::vector{LinkLevel{.link = {.alpha = 0, .beta = 0.01}, .sharing = Sharing::fair}});
  const Timeline timeline = simulate(schedule, costs);
  // F2 of worker 0 leaves at the end of its pair and takes 0.1; so do the gradients before.
  EXPECT_NEAR(span_of_job(schedule, timeline, {0, 2, Pass::F}).start, 9.2, 1e-9);
  EXPECT_NEAR(span_of_job(schedule, timeline, {1, 2, Pass::F}).start, 14.3, 1e-9);
}

TEST(Pairs, ThatCanNeverStartAreRefused) {
  const std::vector<std::vector<Job>> rows = {{{0, 0, Pass::F}, {0, 0, Pass::BW}}};
  const Schedule schedule = in_order("own", StageGraph::chain(1), 1, rows, {{0, 0, Pass::F}});
  EXPECT_THAT(check(schedule).problem, HasSubstr("can never finish"));
  EXPECT_TRUE(check(schedule.without_pairs()).ok());
}

TEST(Pairs, TakeAtLeastTheLongerJobAndAtMostTheSum) {
  const Durations durations = {.F = 2, .B = 2, .W = 2};
  EXPECT_THAT(message_of([&] { simulate(small(), with_overlap({.F_BW = 3.9}, durations)); }),
              HasSubstr("overlap: F(1,1) and BW(1,0) at once take 3.9, but alone 2 and 4"));
  EXPECT_THAT(message_of([&] { simulate(small(), with_overlap({.F_BW = 6.1}, durations)); }),
              HasSubstr("6.1"));
  EXPECT_THAT(message_of([&] { simulate(small(), with_overlap({.factor = 0.5}, durations)); }),
              HasSubstr("take 3,"));
  Costs costs = with_overlap({}, durations);
  costs.prefetch = false;
  EXPECT_THAT(message_of([&] { simulate(small(), costs); }), HasSubstr("overlap: pairs need"));
}

TEST(Pairs, AreWrittenAndReadAsCsv) {
  const std::string text = schedule_csv(small());
  EXPECT_EQ(text,
            "0F0,0F1,(0F2;0B0)OVERLAP_F_B,0B1,0B2\n"
            "1F0,(1F1;1B0)OVERLAP_F_B,(1F2;1B1)OVERLAP_F_B,1B2,\n");
  EXPECT_EQ(schedule_from_csv(text, "small.csv"), small());
  EXPECT_EQ(schedule_from_csv("0F0,0F1,(0B0;0F2)OVERLAP_F_B,0B1,0B2\n"
                              "1F0,(1F1;1B0)OVERLAP_F_B,(1F2;1B1)OVERLAP_F_B,1B2,\n",
                              "small.csv"),
            small());
  EXPECT_THAT(message_of([] { schedule_from_csv("(0F0;0F1)OVERLAP_F_B,0B0,0B1", "x.csv"); }),
              HasSubstr("x.csv: row 1, cell 1: \"(0F0;0F1)OVERLAP_F_B\" is not F and a backward pass"));
}

TEST(Pairs, AreWrittenAndReadAsJson) {
  for (const Schedule& schedule : {small(), named("dualpipe", 4, 12)}) {
    for (const std::optional<Overlap>& overlap :
         {std::optional<Overlap>(), std::optional(Overlap{.factor = 0.9}),
          std::optional(Overlap{.F_BW = 2.5})}) {
      Costs costs;
      costs.overlap = overlap;
      const std::string text = schedule_json(schedule, costs, simulate(schedule, costs)).dump();
      const ImportedSchedule read = schedule_from_json(text, schedule.name() + ".json");
      EXPECT_EQ(read.schedule, schedule);
      EXPECT_EQ(read.costs.overlap, overlap);
      EXPECT_EQ(simulate(read.schedule, read.costs).makespan, simulate(schedule, costs).makespan);
    }
  }
  EXPECT_THAT(message_of([] {
                schedule_from_json(R"({"ops": [[{"op": "F", "stage": 0, "microbatch": 0},
                                        {"op": "BW", "stage": 0, "microbatch": 0, "with_next": true}]]})",
                                   "x.json");
              }),
              HasSubstr("x.json: ops[0][1]: BW(0,0) is no F with a backward pass behind it"));
}

TEST(Pairs, StayWithHomesAndRecomputation) {
  const Costs costs = with_overlap({.F_BW = 3}, {.F = 1, .B = 1, .W = 1});
  const Schedule plain = named("combined-1f1b", 4, 12);
  const Schedule remade = plain.with_recomputation();
  EXPECT_TRUE(remade.has_pairs());
  int pairs = 0;
  for (const JobId id : plain.order()) {
    if (!plain.partner(id)) continue;
    ++pairs;
    const JobId there = remade.find(plain.job(id)).value();
    ASSERT_TRUE(remade.partner(there));
    EXPECT_EQ(remade.job(*remade.partner(there)), plain.job(*plain.partner(id)));
  }
  EXPECT_GT(pairs, 0);
  EXPECT_TRUE(check(remade).ok()) << check(remade).problem;
  EXPECT_GT(simulate(remade, costs).makespan, simulate(plain, costs).makespan);
  EXPECT_TRUE(plain.with_homes(std::vector{Home::host}).has_pairs());
}

}  // namespace
}  // namespace starpipe::plan
