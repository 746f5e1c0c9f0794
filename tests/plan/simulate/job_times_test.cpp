// SPDX-License-Identifier: Apache-2.0
// simulate with the durations and transfer times of single jobs.
#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "plan/slow_reference.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/simulate/simulate.hpp"
#include "support/message_of.hpp"
#include "support/random_schedules.hpp"

namespace starpipe::plan {
namespace {

/// For each job, whether it receives something, and the latest end of the jobs on other workers whose results
/// it reads: nullopt if it only receives weights.
struct Receipt {
  bool receives = false;
  std::optional<double> sent;
};
Receipt receipt(const Schedule& schedule, const std::vector<Span>& spans, JobId id) {
  Receipt result;
  const auto from = [&](JobId producer) {
    const bool copies = is_copy(schedule.job(producer).pass) || is_copy(schedule.job(id).pass);
    if (copies || schedule.compute(producer) == schedule.compute(id)) return;
    result.receives = true;
    result.sent = std::max(result.sent.value_or(0), spans[producer].end);
  };
  schedule.for_each_pred(id, from);
  for (const testing::Input& input : testing::inputs(schedule, Costs{}, id)) {
    if (input.maker) from(*input.maker);
    if (!input.maker && input.from != schedule.compute(id)) result.receives = true;
  }
  return result;
}

class JobTimesTest : public ::testing::TestWithParam<Discipline> {};
INSTANTIATE_TEST_SUITE_P(Disciplines, JobTimesTest,
                         ::testing::Values(Discipline::greedy, Discipline::bounded, Discipline::ordered),
                         [](const auto& parameter) { return std::string(to_string(parameter.param)); });

/// Random times of single jobs. Every job starts as soon as its inputs are there and its worker is free, or
/// later because the discipline held it back.
TEST_P(JobTimesTest, KeepsTheTimesOfEachJob) {
  testing::Random random(70 + static_cast<std::uint64_t>(GetParam()));
  for (int round = 0; round < 600 && !HasFailure(); ++round) {
    const Schedule schedule = testing::sound_schedule(random, GetParam());
    Costs costs = testing::random_costs(random, schedule.stages());
    JobTimes times;
    for (JobId id = 0; id < schedule.id_count(); ++id) {
      times.duration.push_back(testing::between(random, 0, 8) / 4.0);
      times.transfer.push_back(testing::between(random, 0, 8) / 4.0);
    }

    const Timeline timeline = simulate(schedule, costs, times);

    for (int worker = 0; worker < schedule.workers(); ++worker) {
      double free_since = 0;
      for (const JobId id : timeline.order[index(worker)]) {
        const Span& span = timeline.spans[id];
        EXPECT_EQ(span.end - span.start, times.duration[id]);
        const Receipt inputs = receipt(schedule, timeline.spans, id);
        double ready = 0;
        schedule.for_each_pred(id, [&](JobId p) { ready = std::max(ready, timeline.spans[p].end); });
        const double fetch = inputs.receives ? times.transfer[id] : 0;
        if (costs.prefetch) {
          ready = std::max(ready, inputs.sent.value_or(0) + fetch);
          EXPECT_EQ(timeline.ready[id], ready) << to_string(schedule.job(id));
          EXPECT_GE(span.start, std::max(ready, free_since));
        } else {
          EXPECT_EQ(timeline.ready[id], span.start);
          EXPECT_GE(span.start, std::max(ready, free_since) + fetch);
        }
        if (GetParam() == Discipline::ordered) {
          EXPECT_EQ(span.start, std::max(ready, free_since) + (costs.prefetch ? 0 : fetch));
        }
        free_since = span.end;
      }
    }
  }
}

/// Gives `simulate` the costs' times as times of jobs: the result is the same. Leaves out recomputation:
/// there R waits for an F from which it reads nothing. Costs then have no transfer, but times of jobs have
/// one.
TEST_P(JobTimesTest, EqualTheCostsWhenTheySayTheSame) {
  testing::Random random(80 + static_cast<std::uint64_t>(GetParam()));
  for (int round = 0; round < 600 && !HasFailure(); ++round) {
    const Schedule schedule = testing::sound_schedule(random, GetParam());
    if (schedule.recomputes()) continue;
    Costs costs = testing::random_costs(random, schedule.stages());
    costs.prefetch = true;
    const double latency = costs.link(0, 1).alpha;
    costs.links = Link{.alpha = latency};
    JobTimes times;
    times.transfer.assign(schedule.id_count(), latency);
    for (JobId id = 0; id < schedule.id_count(); ++id) {
      times.duration.push_back(schedule.exists(id) ? costs.time(schedule, id) : -1);
    }
    Costs others;
    others.durations = {{7, 8, 9}};
    others.links = Link{.alpha = 3};

    const Timeline expected = simulate(schedule, costs);
    const Timeline timeline = simulate(schedule, others, times);

    EXPECT_EQ(timeline.order, expected.order);
    EXPECT_EQ(timeline.ready, expected.ready);
    for (const JobId id : schedule.order()) EXPECT_EQ(timeline.spans[id].start, expected.spans[id].start);
  }
}

TEST(JobTimes, ThatAreWrongAreRefused) {
  ScheduleSpec spec;
  spec.name = "two";
  spec.placement = [](const Job&) { return Placement{}; };
  spec.priority = [](const Job& job) { return job.microbatch; };
  spec.microbatches = 2;
  const Schedule schedule(spec);
  const auto refusal = [&](const JobTimes& times) {
    return message_of([&] { simulate(schedule, {}, times); });
  };
  EXPECT_EQ(refusal({.duration = {1, 2}}), "durations of 2 jobs, the schedule has 4 job numbers");
  EXPECT_EQ(refusal({.transfer = {1}}), "transfer times of 1 jobs, the schedule has 4 job numbers");
  EXPECT_EQ(refusal({.duration = {1, 1, -1, 1}}),
            "durations of F(0,1) must be at least 0 and less than 1e+100, got -1");
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(refusal({.transfer = {0, nan, 0, 0}}),
            "transfer times of BW(0,0) must be at least 0 and less than 1e+100, got nan");
}

}  // namespace
}  // namespace starpipe::plan
