// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "plan/explain/recorded_step.hpp"
#include "plan/slow_reference.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "support/random_schedules.hpp"

/// Seeded random measured steps. Every number is a small multiple of 1/4, so sums are exact.
namespace starpipe::plan::testing {

/// The effects of a runtime on a step.
struct Disturbance {
  int duration = 8;    ///< the longest duration, in quarters
  int transfer = 6;    ///< the longest transfer
  int submission = 0;  ///< the latest submission
  int delay = 0;       ///< the longest time between the moment at which something is possible and its start
};

/// Runs the jobs on the workers and in the order of `as_run`, which is ordered and sound, with random times.
inline std::vector<JobRun> random_run(Random& random, const Schedule& as_run,
                                      const Disturbance& disturbance) {
  const auto quarter = [&random](int high) { return between(random, 0, high) / 4.0; };
  std::vector<JobRun> by_id(as_run.id_count());
  std::vector<double> free_since(index(as_run.workers()), 0);
  std::vector<JobRun> runs;
  for (const JobId id : topological_order(as_run)) {
    JobRun run = {.job = id, .worker = as_run.compute(id)};
    run.submitted = quarter(disturbance.submission);
    double sent = run.submitted;
    double ready = run.submitted;
    bool receives = false;
    for (const Input& input : inputs(as_run, Costs{}, id)) {
      const double made = input.maker ? by_id[*input.maker].end : 0;
      ready = std::max(ready, made);
      if (input.from == run.worker) continue;
      sent = std::max(sent, made);
      receives = true;
    }
    as_run.for_each_pred(id, [&](JobId producer) { ready = std::max(ready, by_id[producer].end); });
    if (receives) ready = std::max(ready, sent + quarter(disturbance.transfer));
    run.ready = ready + quarter(disturbance.delay);
    double own_channel = 0;  // a copy waits for the one before, see for_each_pred
    double& free = is_copy(as_run.job(id).pass) ? own_channel : free_since[index(run.worker)];
    run.start = std::max(run.ready, free) + quarter(disturbance.delay);
    run.end = run.start + quarter(disturbance.duration);
    free = run.end;
    by_id[id] = run;
    runs.push_back(run);
  }
  std::shuffle(runs.begin(), runs.end(), random);
  return runs;
}

/// The same jobs on random workers, in a random order that can finish. A schedule whose stashes wait on other
/// workers stays as it is: a record has its planned order.
inline Schedule elsewhere(Random& random, const Schedule& schedule) {
  if (schedule.has_peers()) return schedule;
  std::vector<int> worker(schedule.id_count());
  for (int& w : worker) w = between(random, 0, schedule.workers() - 1);
  for (const JobId id : schedule.order()) {  // where stashes are copied, each is on one worker
    const auto [s, b, pass] = schedule.job(id);
    if (schedule.copies()) worker[id] = worker[schedule.forward(s, b)];
  }
  std::vector<std::int64_t> priority(schedule.id_count());
  std::vector<int> waits(schedule.id_count());
  std::vector<JobId> free;
  for (const JobId id : schedule.order()) {
    waits[id] = schedule.pred_count(id);
    if (waits[id] == 0) free.push_back(id);
  }
  for (std::int64_t n = 0; !free.empty(); ++n) {
    std::swap(free[index(between(random, 0, static_cast<int>(free.size()) - 1))], free.back());
    const JobId id = free.back();
    free.pop_back();
    priority[id] = n;
    schedule.for_each_succ(id, [&](JobId next) {
      if (--waits[next] == 0) free.push_back(next);
    });
  }
  ScheduleSpec spec;
  spec.name = "elsewhere";
  spec.graph = schedule.graph();
  spec.microbatches = schedule.microbatches();
  spec.workers = schedule.workers();
  spec.split_backward = [&](int s, int b) { return schedule.split_backward(s, b); };
  spec.placement = [&](const Job& job) {
    const JobId id = *schedule.find(job);
    return Placement{.weights = schedule.placement(id).weights, .compute = worker[id]};
  };
  spec.priority = [&](const Job& job) { return priority[*schedule.find(job)]; };
  spec.home = [&](int s, int b) { return schedule.home(s, b); };
  spec.late_recomputation = schedule.recomputes_late();
  return Schedule(spec);
}

/// A schedule that `check` accepts, of any discipline.
inline Schedule random_schedule(Random& random) {
  return sound_schedule(random, static_cast<Discipline>(between(random, 0, 2)));
}

inline std::string describe(const RecordedStep& step) {
  std::string text;
  for (const auto& row : step.timeline.order) {
    for (const JobId id : row) {
      const Span& span = step.timeline.spans[id];
      text += to_string(step.as_run.job(id)) + " on " + std::to_string(step.as_run.compute(id)) +
              ": submitted " + std::to_string(step.submitted[id]) + " ready " +
              std::to_string(step.timeline.ready[id]) + " ran " + std::to_string(span.start) + ".." +
              std::to_string(span.end) + " transfer " + std::to_string(step.transfer[id]) +
              (step.transfer_observed[id] ? "\n" : " (not observed)\n");
    }
  }
  return text;
}

}  // namespace starpipe::plan::testing
