// SPDX-License-Identifier: Apache-2.0
// A compared run that is written and read back gives the same figures; files that no run can have written are
// refused.
#include "plan/formats/compared_run_json.hpp"

#include <algorithm>
#include <cmath>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "plan/explain/idle_causes.hpp"
#include "plan/explain/step_costs.hpp"
#include "plan/formats/json_value.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "support/message_of.hpp"
#include "support/random_schedules.hpp"

namespace starpipe::plan {
namespace {

using nlohmann::ordered_json;
using testing::between;
using testing::chance;
using testing::Random;

double whole_ns(double seconds) { return std::round(seconds * 1e9) * 1e-9; }

/// A run of the schedule: jobs in a topological order, at times of whole nanoseconds. With `moved`, some jobs
/// run on other workers.
std::vector<JobRun> random_run(const Schedule& schedule, bool moved, Random& random) {
  std::vector<JobRun> jobs;
  std::vector<double> end(schedule.id_count(), 0);
  std::vector<double> free_at(index(schedule.workers()), 0);
  const auto time = [&](int min, int max) { return between(random, min, max) * 1e-9; };
  for (const JobId id : topological_order(schedule)) {
    JobRun job{.job = id, .worker = schedule.compute(id), .submitted = time(-1'000'000, 0)};
    if (moved && chance(random, 0.3)) job.worker = between(random, 0, schedule.workers() - 1);
    double arrival = 0;
    schedule.for_each_pred(id, [&](JobId before) { arrival = std::max(arrival, end[before]); });
    job.ready = whole_ns(arrival + time(0, 500'000));
    job.start = whole_ns(std::max(job.ready, free_at[index(job.worker)]) + time(0, 1000));
    job.end = whole_ns(job.start + time(1, 3'000'000));
    end[id] = free_at[index(job.worker)] = job.end;
    jobs.push_back(job);
  }
  const double first = std::ranges::min_element(jobs, {}, &JobRun::start)->start;
  for (JobRun& job : jobs) {
    for (double* const of : {&job.submitted, &job.ready, &job.start, &job.end}) *of = whole_ns(*of - first);
  }
  return jobs;
}

Difference whole(Difference d) {
  for (double* const of : {&d.predicted, &d.own_durations, &d.own_transfers, &d.own_order, &d.measured}) {
    *of = whole_ns(*of);
  }
  return d;
}

ComparedRun compared(const Schedule& schedule, const std::vector<JobRun>& jobs) {
  RecordedStep step = measured_step(schedule, jobs);
  StepCosts all;
  all.add(step);
  const Costs costs = all.costs();
  std::vector<Difference> differences(3, whole(difference(step, costs)));
  differences[0].own_order = differences[0].measured;
  return {.first_step = 2,
          .median_step = 3,
          .differences = differences,
          .costs = costs,
          .work = std::vector<Durations>(index(schedule.stages()), {1, 2.5, 1.5}),
          .groups = schedule.workers() % 2 == 0 ? std::optional(2) : std::nullopt,
          .predicted = simulated_step(schedule, costs),
          .measured = std::move(step)};
}

std::string report_of(const ordered_json& explain) { return json_text({{"explain", explain}}); }

void expect_equal(const ComparedRun& read, const ComparedRun& written) {
  EXPECT_EQ(read.first_step, written.first_step);
  EXPECT_EQ(read.median_step, written.median_step);
  ASSERT_EQ(read.differences.size(), written.differences.size());
  for (std::size_t i = 0; i < read.differences.size(); ++i) {
    for (const auto of : {&Difference::predicted, &Difference::own_durations, &Difference::own_transfers,
                          &Difference::own_order, &Difference::measured}) {
      EXPECT_EQ(read.differences[i].*of, written.differences[i].*of);
    }
  }
  EXPECT_EQ(read.costs.durations, written.costs.durations);
  EXPECT_EQ(read.costs.links, written.costs.links);
  EXPECT_EQ(read.work, written.work);
  EXPECT_EQ(read.groups, written.groups);
  EXPECT_TRUE(read.measured.planned == written.measured.planned);
  EXPECT_TRUE(read.measured.as_run == written.measured.as_run);
  EXPECT_EQ(read.measured.submitted, written.measured.submitted);
  EXPECT_EQ(read.measured.transfer, written.measured.transfer);
  EXPECT_EQ(read.measured.timeline.ready, written.measured.timeline.ready);
  EXPECT_EQ(read.measured.timeline.makespan, written.measured.timeline.makespan);
  EXPECT_EQ(read.predicted.timeline.makespan, written.predicted.timeline.makespan);
  const int workers = written.measured.as_run.workers();
  EXPECT_EQ(idle_seconds(idle_parts(read.measured), workers),
            idle_seconds(idle_parts(written.measured), workers));
}

TEST(ComparedRunJson, GivesTheSameFiguresWhenReadBack) {
  Random random(7);
  int moved = 0;
  for (int run = 0; run < 200; ++run) {
    const Schedule drawn(testing::random_spec(random, {.sound_priority = 1}));
    const Schedule schedule = run % 2 == 0 ? drawn : drawn.with(Discipline::greedy);
    if (!check(schedule).ok()) continue;
    SCOPED_TRACE(::testing::Message() << "run " << run);
    const ComparedRun written = compared(schedule, random_run(schedule, run % 2 == 1, random));
    if (!(written.measured.as_run.order(0).size() == schedule.order(0).size())) ++moved;
    const std::string text = report_of(compared_run_json(written));
    expect_equal(compared_run_from_json(text, "r.json"), written);
    EXPECT_EQ(report_of(compared_run_json(compared_run_from_json(text, "r.json"))), text);
    if (HasFailure()) return;
  }
  EXPECT_GT(moved, 10) << "hardly a job ran elsewhere: the test tests little";
}

TEST(ComparedRunJson, PartsAddUpExactly) {
  Random random(8);
  const Schedule schedule(testing::random_spec(random, {.sound_priority = 1}));
  const ordered_json per_step =
      compared_run_json(compared(schedule, random_run(schedule, false, random)))["per_step"];
  for (std::size_t i = 0; i < per_step["measured"].size(); ++i) {
    auto sum = per_step["predicted"].get<std::int64_t>();
    for (const char* part : {"durations", "transfers", "order", "runtime"})
      sum += per_step[part][i].get<std::int64_t>();
    EXPECT_EQ(sum, per_step["measured"][i].get<std::int64_t>());
  }
}

// The file of `compare -o`.
std::string policies_file(const ComparedRun& run, double makespan) {
  ordered_json policies = ordered_json::array();
  for (const char* name : {"starpipe", "lws"}) {
    policies.push_back(
        {{"policy", name}, {"makespan", makespan}, {"record", policy_record_json(run.measured, run.costs)}});
  }
  return json_text({{"schedules", {{{"policies", policies}}, {{"policies", policies}}}}});
}

TEST(ComparedPoliciesJson, GivesTheSameRunsWhenReadBack) {
  Random random(9);
  for (int run = 0; run < 50; ++run) {
    const Schedule schedule(testing::random_spec(random, {.sound_priority = 1}));
    if (!check(schedule).ok()) continue;
    SCOPED_TRACE(::testing::Message() << "run " << run);
    const ComparedRun written = compared(schedule, random_run(schedule, run % 2 == 1, random));
    const auto schedules =
        compared_policies_from_json(policies_file(written, written.measured.timeline.makespan), "c.json");
    ASSERT_EQ(schedules.size(), 2U);
    ASSERT_EQ(schedules[1].size(), 2U);
    EXPECT_EQ(schedules[1][1].policy, "lws");
    for (const PolicyRun& read : schedules[1]) {
      EXPECT_EQ(policy_record_json(read.step, read.costs),
                policy_record_json(written.measured, written.costs));
      EXPECT_TRUE(read.step.as_run == written.measured.as_run);
      EXPECT_EQ(read.step.timeline.makespan, written.measured.timeline.makespan);
    }
    if (HasFailure()) return;
  }
}

TEST(ComparedPoliciesJson, RefusesRunsThatNoneIs) {
  Random random(10);
  const Schedule schedule(testing::random_spec(random, {.sound_priority = 1}));
  const ComparedRun run = compared(schedule, random_run(schedule, false, random));
  const auto message_about = [](const std::string& text) {
    return message_of([&] { static_cast<void>(compared_policies_from_json(text, "c.json")); });
  };
  const double makespan = run.measured.timeline.makespan;
  ASSERT_EQ(message_about(policies_file(run, makespan)), "");
  EXPECT_THAT(message_about(policies_file(run, makespan + 1)),
              ::testing::StartsWith("c.json: schedules[0].policies[0].record: its jobs end after "));
  ordered_json file = ordered_json::parse(policies_file(run, makespan));
  file["schedules"][1]["policies"][1]["record"]["jobs"]["start"][0] = "soon";
  EXPECT_EQ(
      message_about(file.dump()),
      "c.json: schedules[1].policies[1].record.jobs.start[0]: expected a whole number of nanoseconds, got "
      "\"soon\"");
  file["schedules"][1]["policies"][1].erase("record");
  EXPECT_EQ(message_about(file.dump()), "c.json: schedules[1].policies[1].record: missing");
  file["schedules"][1]["policies"] = ordered_json::array();
  EXPECT_EQ(message_about(file.dump()), "c.json: schedules[1].policies: no policies");
  EXPECT_EQ(message_about(R"({"schedules": []})"), "c.json: schedules: no schedules");
  EXPECT_EQ(message_about("[]"), "c.json: : expected an object, got an array");
}

class BadFile : public ::testing::Test {
 protected:
  /// The message about the file after `change`, a merge patch of "explain".
  [[nodiscard]] std::string message_after(const std::string& change) const {
    ordered_json changed = good_;
    changed.merge_patch(ordered_json::parse(change));
    return message_about(report_of(changed));
  }
  [[nodiscard]] static std::string message_about(const std::string& text) {
    return message_of([&] { static_cast<void>(compared_run_from_json(text, "r.json")); });
  }

  // One stage and one micro-batch on one of two workers.
  ordered_json good_ = [] {
    const Schedule schedule({.name = "tiny",
                             .graph = StageGraph::chain(1),
                             .microbatches = 1,
                             .workers = 2,
                             .placement =
                                 [](const Job&) {
                                   return Placement{1, 1};
                                 },
                             .priority = [](const Job& job) { return static_cast<std::int64_t>(job.pass); }});
    const std::vector<JobRun> jobs = {
        {.job = 0, .worker = 1, .submitted = 0, .ready = 0, .start = 0, .end = 3e-9},
        {.job = 1, .worker = 1, .submitted = 0, .ready = 3e-9, .start = 4e-9, .end = 9e-9}};
    return compared_run_json(compared(schedule, jobs));
  }();
};

TEST_F(BadFile, IsRefusedInOneLine) {
  ASSERT_EQ(message_after("{}"), "");
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"version": 1})", "explain.version: 1, but this program reads version 2"},
      {R"({"version": null})", "explain.version: missing"},
      {R"({"steps": {"median": 9}})", "explain.steps.median: is not one of the compared steps"},
      {R"({"steps": {"last": 9}})", "explain.steps.last: is not the last of the 3 compared steps"},
      {R"({"per_step": {"measured": [9, 9, 8]}})", "explain.per_step.measured[2]: is not the sum"},
      {R"({"per_step": {"order": [0, 0]}})", "explain.per_step.order: 2 entries, expected 3"},
      {R"({"per_step": {"measured": []}})", "explain.per_step.measured: no steps"},
      {R"({"record": {"jobs": {"worker": [1, 2]}}})",
       "explain.record.jobs.worker[1]: 2, but there are 2 workers"},
      {R"({"record": {"jobs": {"worker": []}}})", "explain.record.jobs.worker: no jobs"},
      {R"({"record": {"jobs": {"start": [0]}}})", "explain.record.jobs.start: 1 entries, expected 2"},
      {R"({"record": {"jobs": {"start": [0, 1.5]}}})",
       "explain.record.jobs.start[1]: expected a whole number"},
      {R"({"record": {"jobs": {"pass": ["F", "X"]}}})",
       "explain.record.jobs.pass[1]: expected F, B, W, BW, R"},
      {R"({"record": {"jobs": {"pass": ["F", "F"]}}})", "listed twice"},
      {R"({"record": {"jobs": {"end": [3, 2]}}})", "r.json: explain.record: "},
      {R"({"record": {"jobs": {"end": [3, 99]}}})", "do not end with the measured makespan"},
      {R"({"record": {"jobs": {"end": [5, 9]}}})",
       "explain.record.jobs: BW(0,0) starts before F(0,0) has ended, but both ran on worker 1"},
      {R"({"record": {"jobs": {"end": [2, 9]}}})",
       "explain.per_step.durations[1]: the jobs in explain.record give -1"},
      {R"({"record": {"jobs": {"ready": [0, 5]}}})",
       "explain.record.jobs.ready[1]: BW(0,0) starts before it is ready"},
      {R"({"record": {"jobs": {"submitted": [0, 4]}}})",
       "explain.record.jobs.submitted[1]: BW(0,0) is ready before it is submitted"},
      {R"({"record": {"jobs": {"ready": [0, 2]}}})",
       "explain.record.jobs.ready[1]: BW(0,0) is ready before F(0,0) has ended on the same worker"},
      {R"({"per_step": {"transfers": [0, 1, 0], "runtime": [0, 0, 1]}})",
       "explain.per_step.transfers[1]: the jobs in explain.record give 0"},
      {R"({"per_step": {"order": [1, 1, 0], "runtime": [0, 0, 1]}})",
       "explain.per_step.order[1]: the jobs in explain.record give 0"},
      {R"({"per_step": {"runtime": [0, 1, 2], "measured": [9, 9, 10]}, "steps": {"median": 4}})",
       "explain.steps.median: is not the step with the median makespan"},
      {R"({"record": {"jobs": {"end": [3, 99999999999999999]}}})", "2^50"},
      {R"({"record": {"jobs": {"ran_on": [1, -1]}}})", "explain.record.jobs.ran_on[1]: must be at least 0"},
      {R"({"record": {"jobs": {"ran_on": [1]}}})", "explain.record.jobs.ran_on: 1 entries, expected 2"},
      {R"({"record": {"jobs": {"weights": "elsewhere"}}})",
       "explain.record.jobs.weights: expected an array or \"worker\", got \"elsewhere\""},
      {R"({"record": {"schedule": {"name": "two\nlines"}}})",
       "explain.record.schedule.name: expected a name without control characters"},
      {R"({"record": {"schedule": {"groups": 0}}})", "explain.record.schedule.groups: must be at least 1"},
      {R"({"record": {"schedule": {"memory_limits": [1]}}})",
       "explain.record.schedule.memory_limits: 1 entries for 2 workers"},
      {R"({"record": {"schedule": {"workers": 2000000000}}})",
       "explain.record.schedule.workers: must be at most"},
      {R"({"record": {"schedule": {"stages": 2000000000}}})", "is missing"},
      {R"({"record": {"schedule": {"discipline": "lazy"}}})", "explain.record.schedule.discipline: expected"},
      {R"({"record": {"costs": {"durations": []}}})", "r.json: explain.record: durations for 0 stages"},
      {R"({"record": {"costs": {"durations": [{"F": 1, "B": 1, "W": 1}]}}})",
       "explain.record.costs: the schedule has another predicted makespan"},
      {R"({"record": {"costs": {"comm": -1}}})", "explain.record.costs.comm: expected"},
      {R"({"record": {"work": []}})", "explain.record.work: 0 entries for 1 stages"},
      {R"({"record": null})", "explain.record: missing"}};
  for (const auto& [change, wanted] : cases) {
    const std::string message = message_after(change);
    EXPECT_NE(message.find(wanted), std::string::npos) << change << ": " << message;
    EXPECT_TRUE(message.starts_with("r.json: ")) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
  EXPECT_NE(message_about("{}").find("no \"explain\""), std::string::npos);
  EXPECT_NE(message_about("[]").find("no \"explain\""), std::string::npos);
  EXPECT_TRUE(message_about("{").starts_with("r.json: "));
}

// A key that is left out is never taken for a default: the figures would belong to another run.
TEST_F(BadFile, EveryKeyIsNeeded) {
  int keys = 0;
  const auto remove_each = [&](const auto& self, const ordered_json::json_pointer& object) -> void {
    for (const auto& [key, value] : good_[object].items()) {
      const ordered_json::json_pointer member = object / key;
      ordered_json changed = good_;
      changed[object].erase(key);
      std::string path = "explain" + member.to_string();
      std::ranges::replace(path, '/', '.');
      EXPECT_EQ(message_about(report_of(changed)), "r.json: " + path + ": missing");
      ++keys;
      if (value.is_object()) self(self, member);
    }
  };
  remove_each(remove_each, ordered_json::json_pointer());
  EXPECT_GT(keys, 30);
}

// A worker that begins a job before the job that it waits for has ended: no order has these starts.
TEST_F(BadFile, MayNotContradictTheDependencies) {
  const std::string message =
      message_after(R"({"record": {"jobs": {"start": [5, 0], "ready": [0, 0], "end": [9, 4]}}})");
  EXPECT_TRUE(message.starts_with("r.json: explain.record: ")) << message;
}

}  // namespace
}  // namespace starpipe::plan
