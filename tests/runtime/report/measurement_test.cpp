// SPDX-License-Identifier: Apache-2.0
// The meter and the measurement, given runs whose figures `plan` computes independently.

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include <gtest/gtest.h>

#include "runtime/engine/meter.hpp"
#include "runtime/host/topology.hpp"
#include "runtime/report/report.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/simulate/simulate.hpp"
#include "starpipe/plan/simulate/transfers.hpp"
#include "support/network_schedules.hpp"
#include "support/networks.hpp"
#include "support/optimizers.hpp"
#include "support/random_schedules.hpp"
#include "support/schedules.hpp"

namespace starpipe::runtime {
namespace {

using namespace testing;
using plan::Schedule;

/// A run of the schedule in which every job has a different duration: no two events coincide, so their order
/// is unique.
plan::Timeline random_run(const Schedule& schedule, const model::Network& network, std::mt19937_64& random) {
  std::uniform_real_distribution<double> duration(0.5, 2);
  std::vector<plan::Span> spans(schedule.id_count());
  std::vector<std::vector<plan::JobId>> order(index(schedule.workers()));
  std::vector<double> free_at(index(schedule.workers()), 0);
  for (const plan::JobId id : plan::topological_order(schedule)) {
    double& start = free_at[index(schedule.compute(id))];
    schedule.for_each_pred(id, [&](plan::JobId before) { start = std::max(start, spans[before].end); });
    spans[id] = {start, start + duration(random)};
    start = spans[id].end;
    order[index(schedule.compute(id))].push_back(id);
  }
  return plan::evaluate(schedule, costs_of(network), std::move(spans), std::move(order));
}

/// A job that was ready when it started, on a clock that `offset` is to be added to.
JobRecord record(const Schedule& schedule, plan::JobId id, const plan::Timeline& timeline, double offset) {
  const plan::Span span = timeline.spans[id];
  return {.job = id,
          .worker = schedule.compute(id),
          .submitted = offset,
          .ready = offset + span.start,
          .start = offset + span.start,
          .end = offset + span.end};
}

/// Reports all tasks of the workers in `local` to the meter, in the order of the timeline.
void feed(Meter& meter, const TaskGraph& graph, const plan::Timeline& timeline,
          const std::vector<bool>& local) {
  struct Event {
    double time;
    bool starts;
    const Task* task;
  };
  std::vector<Event> events;
  const auto is_local = [&](const Task& task) { return local[index(task.worker)]; };
  const auto run_now = [&](const Task& task) {
    if (task.job || !is_local(task)) return;
    meter.start(task, task.worker);
    meter.end(task, task.worker, {});
  };
  for (const Task& task : graph.tasks()) {
    if (task.kind == TaskKind::zero) run_now(task);
    if (!task.job || !is_local(task)) continue;
    events.push_back({timeline.spans[*task.job].start, true, &task});
    events.push_back({timeline.spans[*task.job].end, false, &task});
  }
  std::ranges::stable_sort(events, [](const Event& a, const Event& b) {
    return a.time != b.time ? a.time < b.time : a.starts < b.starts;
  });
  for (const auto& [time, starts, task] : events) {
    if (starts) {
      meter.start(*task, task->worker);
    } else {
      const double begin = timeline.spans[*task->job].start;
      meter.end(*task, task->worker, {.submitted = 0, .ready = begin, .start = begin, .end = time});
    }
  }
  for (const Task& task : graph.tasks()) {
    if (task.kind != TaskKind::zero) run_now(task);
  }
}

void expect_equal(const WorkerRecord& measured, const plan::Timeline& timeline, std::size_t w) {
  EXPECT_EQ(measured.peak_stashes, timeline.peak_stashes[w]) << "worker " << w;
  EXPECT_EQ(measured.peak_stash_bytes, timeline.peak_stash_bytes[w]) << "worker " << w;
  EXPECT_EQ(measured.received, timeline.received[w]) << "worker " << w;
}

TEST(Meter, CountsWhatThePlanCounts) {
  std::mt19937_64 random(3);
  int moving = 0;
  for (int run = 0; run < 300; ++run) {
    const Schedule drawn(plan::testing::random_spec(random, {.sound_priority = 1}));
    Schedule schedule = run % 2 == 0 ? drawn : drawn.with(plan::Discipline::greedy);
    if (run % 3 == 0) schedule = schedule.with_recomputation();
    if (!plan::check(schedule).ok()) continue;
    SCOPED_TRACE(::testing::Message() << "run " << run);
    const model::Network network = dag_network(schedule.graph());
    const TaskGraph graph(schedule, network, plain_sgd);
    const plan::Timeline timeline = random_run(schedule, network, random);
    const std::vector<bool> local(index(schedule.workers()), true);
    Meter meter(graph, schedule.workers(), local);
    // A second time, to see that no state of the first is left.
    for (int time = 0; time < 2; ++time) {
      meter.reset();
      feed(meter, graph, timeline, local);
      for (std::size_t w = 0; w < local.size(); ++w) expect_equal(meter.workers()[w], timeline, w);
      ASSERT_EQ(meter.take_jobs().size(), schedule.job_count());
    }
    for (const plan::Transfers& received : timeline.received) moving += received.stashes.count > 0;
    if (HasFailure()) return;
  }
  EXPECT_GT(moving, 20) << "no stash ever moved: the test tests little";
}

TEST(Meter, RanksCountTheirOwnWorkers) {
  for (const NamedCase& named : named_cases(4, 6)) {
    SCOPED_TRACE(named.name);
    const Schedule schedule = split(named.schedule);
    const TaskGraph graph(schedule, named.network, plain_sgd);
    std::mt19937_64 random(4);
    const plan::Timeline timeline = random_run(schedule, named.network, random);
    for (const std::size_t ranks : {2U, 4U}) {
      const WorkerMap map(4, static_cast<int>(ranks));
      for (int rank = 0; rank < static_cast<int>(ranks); ++rank) {
        std::vector<bool> local;
        for (int w = 0; w < 4; ++w) local.push_back(map.rank_of(w) == rank);
        Meter meter(graph, 4, local);
        feed(meter, graph, timeline, local);
        for (std::size_t w = 0; w < 4; ++w) {
          if (local[w]) {
            expect_equal(meter.workers()[w], timeline, w);
          } else {
            EXPECT_EQ(meter.workers()[w].peak_stashes, 0);
            EXPECT_EQ(meter.workers()[w].received, plan::Transfers{});
          }
        }
      }
    }
  }
}

TEST(Meter, OtherPoliciesMayRunAJobOnAnotherWorker) {
  const model::Network network = tiny_mlp(2);
  const Schedule schedule = plan::make_schedule("1f1b", {.workers = 2, .microbatches = 1});
  const TaskGraph graph(schedule, network, plain_sgd);
  Meter meter(graph, 2, {true, true});
  for (const Task& task : graph.tasks()) {
    meter.start(task, 1);
    meter.end(task, 1, {.submitted = 0, .ready = 0, .start = 0, .end = 1});
  }
  for (const JobRecord& job : meter.take_jobs()) EXPECT_EQ(job.worker, 1);
  EXPECT_EQ(meter.workers()[1].received.activations.count, 0U) << "it was written there";
  EXPECT_EQ(meter.workers()[1].received.weights.count, 1U) << "stage 0's are worker 0's";
}

// ---- bytes between ranks ----

TEST(BytesBetweenRanks, OneWorkerARankIsWhatWorkersReceive) {
  std::vector<NamedCase> cases = named_cases(4, 6);
  std::ranges::move(named_cases(4, 6, tied_gpt), std::back_inserter(cases));
  for (const NamedCase& named : cases) {
    SCOPED_TRACE(named.name);
    const TaskGraph graph(named.schedule, named.network, plain_sgd);
    std::uint64_t bytes = 0;
    for (const plan::Transfers& t : plan::count_transfers(named.schedule, costs_of(named.network))) {
      bytes += t.total().bytes;
    }
    // Each worker but the first sends its verdict up the tree: a double for each parameter, and one more.
    const std::size_t parameters = graph.parameters().back().first + graph.parameters().back().sizes.size();
    std::set<int> norms;
    for (const Task& task : graph.tasks()) {
      if (task.kind == TaskKind::norm) norms.insert(task.worker);
    }
    bytes += (norms.size() - 1) * (parameters + 1) * sizeof(double);
    EXPECT_EQ(bytes_between_ranks(graph, WorkerMap(4, 4)), bytes);
    EXPECT_LE(bytes_between_ranks(graph, WorkerMap(4, 2)), bytes);
    EXPECT_EQ(bytes_between_ranks(graph, WorkerMap(4, 1)), 0U);
  }
}

TEST(BytesBetweenRanks, ADatumGoesToARankOnce) {
  // FSDP: both workers of a rank read each stage's weights, which come once; gradients are reduced in a tree.
  const model::Network network = tiny_mlp(4);
  const Schedule schedule = plan::make_schedule("fsdp", {.workers = 4, .microbatches = 4});
  const TaskGraph graph(schedule, network, plain_sgd);
  std::uint64_t weights = 0;
  for (const model::Stage& stage : network.stages) weights += stage.parameter_size() * sizeof(float);
  const std::uint64_t all = bytes_between_ranks(graph, WorkerMap(4, 2));
  EXPECT_GE(all, 2 * weights) << "weights to the other rank, and at least one gradient back";
  EXPECT_LE(all, 4 * weights);
}

// ---- where workers are ----

TEST(WorkerMap, BlocksOfNeighbours) {
  for (int ranks = 1; ranks <= 9; ++ranks) {
    for (int workers = ranks; workers <= 40; ++workers) {
      const WorkerMap map(workers, ranks);
      int next = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        EXPECT_EQ(map.first(rank), next);
        EXPECT_GE(map.count(rank), workers / ranks);
        EXPECT_LE(map.count(rank), (workers + ranks - 1) / ranks);
        for (int i = 0; i < map.count(rank); ++i) EXPECT_EQ(map.rank_of(next++), rank);
      }
      EXPECT_EQ(next, workers);
    }
  }
}

// ---- measurement ----

class Measured : public ::testing::Test {
 protected:
  /// A step with these costs that begins at `start` on the clock.
  [[nodiscard]] StepResult step(const plan::Costs& costs, double start) const {
    const plan::Timeline timeline = plan::simulate(schedule_, costs);
    StepResult result;
    for (const plan::JobId id : schedule_.order()) {
      result.jobs.push_back(record(schedule_, id, timeline, start));
    }
    for (int w = 0; w < schedule_.workers(); ++w) {
      const auto i = index(w);
      result.workers.push_back({.received = timeline.received[i],
                                .peak_stashes = timeline.peak_stashes[i],
                                .peak_stash_bytes = timeline.peak_stash_bytes[i]});
    }
    return result;
  }
  [[nodiscard]] plan::Costs costs(double scale) const {
    plan::Costs all = costs_of(network_);
    all.durations.clear();
    for (int s = 0; s < schedule_.stages(); ++s) all.durations.push_back({scale * (s + 1), 2 * scale, scale});
    return all;
  }

  model::Network network_ = tiny_mlp(3);
  Schedule schedule_ = split(plan::make_schedule("1f1b", {.workers = 3, .microbatches = 4}));
};

TEST_F(Measured, AStepIsWhatThePlanSays) {
  const plan::Timeline timeline = plan::simulate(schedule_, costs(0.5));
  Measurement measurement(schedule_, costs_of(network_));
  measurement.begin_step();
  measurement.end_step(step(costs(0.5), 1000));
  const plan::ComparedRun run = measurement.compared();
  const plan::Timeline& measured = run.measured.timeline;
  for (int w = 0; w < 3; ++w)
    EXPECT_TRUE(std::ranges::equal(run.measured.as_run.order(w), schedule_.order(w)));
  EXPECT_NEAR(measured.makespan, timeline.makespan, 1e-8);
  EXPECT_NEAR(measured.bubble_fraction, timeline.bubble_fraction, 1e-8);
  EXPECT_NEAR(measured.device_span, timeline.device_span, 1e-8);
  EXPECT_EQ(measured.received, timeline.received);
  EXPECT_EQ(measured.peak_stashes, timeline.peak_stashes);
  EXPECT_EQ(measured.peak_stash_bytes, timeline.peak_stash_bytes);
  // The only step is compared with a prediction from its own durations.
  EXPECT_EQ(run.first_step, 1);
  EXPECT_EQ(run.last_step(), 1);
  EXPECT_NEAR(run.predicted.timeline.makespan, timeline.makespan, 1e-8);
}

// Of three replicas, worker 2 adds last: 0.25 after the last job, where the first job starts at 1000.
TEST_F(Measured, GradientsAreSummedAfterTheLastJob) {
  const auto summed = [&](const plan::Costs& known) {
    Measurement measurement(schedule_, known, true);
    measurement.begin_step();
    StepResult result = step(costs(0.5), 1000);
    const double makespan = plan::simulate(schedule_, costs(0.5)).makespan;
    result.workers[0].last_sum = 1000 + 0.5 * makespan;
    result.workers[2].last_sum = 1000 + makespan + 0.25;
    measurement.end_step(std::move(result));
    const plan::ComparedRun run = measurement.compared();
    EXPECT_EQ(run.measured.timeline.gradients_summed.has_value(),
              run.predicted.timeline.gradients_summed.has_value());
    return run.measured.timeline.gradients_summed.value_or(-1) - makespan;
  };
  EXPECT_EQ(summed(costs(0.5)), -1 - plan::simulate(schedule_, costs(0.5)).makespan)
      << "there are no replicas";
  schedule_ =
      split(plan::make_schedule("ddp", {.workers = 3, .microbatches = 3, .graph = schedule_.graph()}));
  EXPECT_NEAR(summed(costs(0.5)), 0.25, 1e-8);
}

TEST_F(Measured, PredictsWithTheMediansOfTheComparedSteps) {
  Measurement measurement(schedule_, costs_of(network_));
  double clock = 5;
  const std::array scales = {100.0, 1.0, 2.0, 9.0, 7.0, 3.0};
  for (const double scale : scales) {
    measurement.begin_step();
    measurement.end_step(step(costs(scale), clock));
    clock += 1000;
  }
  const plan::ComparedRun run = measurement.compared();
  EXPECT_EQ(run.first_step, 2) << "the first step warms up";
  EXPECT_EQ(run.last_step(), 6);
  EXPECT_EQ(run.median_step, 6);
  ASSERT_EQ(run.costs.durations.size(), 3U);
  for (int s = 0; s < 3; ++s) {
    EXPECT_NEAR(run.costs.durations[index(s)].F, 3.0 * (s + 1), 1e-8) << "the median of 1, 2, 9, 7 and 3";
    EXPECT_NEAR(run.costs.durations[index(s)].B, 6, 1e-8);
    EXPECT_NEAR(run.costs.durations[index(s)].W, 3, 1e-8);
  }
  const auto makespan = [&](double scale) { return plan::simulate(schedule_, costs(scale)).makespan; };
  ASSERT_EQ(measurement.makespans().size(), 5U);
  ASSERT_EQ(run.differences.size(), 5U);
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_NEAR(measurement.makespans()[i], makespan(scales[i + 1]), 1e-7);
    const plan::Difference& parts = run.differences[i];
    EXPECT_NEAR(parts.measured, makespan(scales[i + 1]), 1e-7);
    EXPECT_NEAR(parts.own_durations - parts.predicted, makespan(scales[i + 1]) - makespan(3), 1e-7)
        << "nothing else differs";
    EXPECT_NEAR(parts.own_order, parts.own_durations, 1e-7);
  }
  EXPECT_NEAR(run.measured.timeline.makespan, makespan(3), 1e-7) << "the median step";
  EXPECT_NEAR(run.predicted.timeline.makespan, makespan(3), 1e-7);
}

TEST_F(Measured, KnownCostsAreNotMeasured) {
  Measurement measurement(schedule_, costs(2), true);
  for (const double scale : {50.0, 3.0}) {
    measurement.begin_step();
    measurement.end_step(step(costs(scale), 0));
  }
  const plan::ComparedRun run = measurement.compared();
  EXPECT_EQ(run.costs.durations, costs(2).durations);
  EXPECT_NEAR(run.differences.at(0).predicted, plan::simulate(schedule_, costs(2)).makespan, 1e-9);
}

TEST_F(Measured, AllStepsOfALongRunAreCompared) {
  Measurement measurement(schedule_, costs_of(network_));
  for (int i = 0; i < 500; ++i) {
    measurement.begin_step();
    measurement.end_step(step(costs(i), 0));
  }
  const plan::ComparedRun run = measurement.compared();
  EXPECT_EQ(measurement.makespans().size(), 499U);
  EXPECT_EQ(run.first_step, 2);
  EXPECT_EQ(run.last_step(), 500);
  EXPECT_EQ(run.median_step, 251);
  EXPECT_NEAR(run.differences.front().measured, plan::simulate(schedule_, costs(1)).makespan, 1e-6);
  EXPECT_NEAR(run.differences.back().measured, plan::simulate(schedule_, costs(499)).makespan, 1e-6);
}

TEST_F(Measured, OfStepsWithManyJobsTheLastAreCompared) {
  struct Case {
    int microbatches;
    std::size_t compared;
  };
  for (const auto& [microbatches, compared] : {Case{10'000, 4}, Case{20'000, Measurement::fewest_steps}}) {
    SCOPED_TRACE(microbatches);
    schedule_ = plan::make_schedule("1f1b", {.workers = 3, .microbatches = microbatches});
    ASSERT_EQ(std::max(Measurement::max_jobs / schedule_.job_count(), Measurement::fewest_steps), compared);
    const StepResult same = step(costs(1), 0);
    Measurement measurement(schedule_, costs_of(network_));
    for (int i = 0; i < 6; ++i) {
      measurement.begin_step();
      measurement.end_step(same);
    }
    const plan::ComparedRun run = measurement.compared();
    EXPECT_EQ(measurement.makespans().size(), 5U);
    EXPECT_EQ(run.differences.size(), compared);
    EXPECT_EQ(run.last_step(), 6);
  }
}

TEST_F(Measured, JobsCountWhereTheyRan) {
  StepResult result = step(costs(1), 0);
  // Everything on worker 2, as a policy may do that ignores w.
  double clock = 0;
  for (JobRecord& job : result.jobs) {
    job.worker = 2;
    job.ready = job.start = clock;
    job.end = clock += 1;
  }
  Measurement measurement(schedule_, costs_of(network_));
  measurement.begin_step();
  measurement.end_step(result);
  const plan::ComparedRun run = measurement.compared();
  const plan::Timeline& measured = run.measured.timeline;
  EXPECT_EQ(run.measured.as_run.order(2).size(), schedule_.job_count());
  EXPECT_NEAR(measured.busy[2], static_cast<double>(schedule_.job_count()), 1e-8);
  EXPECT_EQ(measured.busy[0], 0);
  EXPECT_NEAR(measured.bubble_fraction, 2.0 / 3, 1e-8);
}

TEST(MeasuredFused, BackwardPassesAreOneDuration) {
  const model::Network network = tiny_mlp(2);
  const Schedule schedule = plan::make_schedule("gpipe", {.workers = 2, .microbatches = 3});
  plan::Costs costs = costs_of(network);
  costs.durations = {{1, 2, 1}};
  const plan::Timeline timeline = plan::simulate(schedule, costs);
  StepResult result;
  for (const plan::JobId id : schedule.order()) {
    result.jobs.push_back(record(schedule, id, timeline, 0));
  }
  Measurement measurement(schedule, costs_of(network));
  measurement.begin_step();
  measurement.end_step(result);
  const plan::ComparedRun run = measurement.compared();
  EXPECT_NEAR(run.costs.durations[0].of(plan::Pass::BW), 3, 1e-8);
  EXPECT_NEAR(run.predicted.timeline.makespan, timeline.makespan, 1e-8);
}

TEST(ReportHead, CountsTheCoresOfAllRanksOfTheMachine) {
  const auto cores = [](const std::vector<std::string>& bindings) {
    std::vector<RankLocation> locations;
    const auto add = [&](const char* machine, const std::string& binding) {
      RankLocation& location = locations.emplace_back();
      location.machine = machine;
      location.binding = binding;
    };
    for (const std::string& binding : bindings) add("a", binding);
    add("b", Topology::host().allowed());
    return report_head({}, {}, locations).at("machine").at("cores").get<int>();
  };
  const Topology& host = Topology::host();
  EXPECT_EQ(cores({"0", "1"}), host.cores("0-1"));
  EXPECT_EQ(cores({"0", "0"}), host.cores("0"));
  EXPECT_EQ(cores({"0-1", "0", "1"}), host.cores("0-1"));
  EXPECT_EQ(cores({host.allowed()}), host.cores(host.allowed()));
}

}  // namespace
}  // namespace starpipe::runtime
