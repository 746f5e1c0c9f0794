// SPDX-License-Identifier: Apache-2.0
#include "plan/explain/recorded_step.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "plan/explain/step_costs.hpp"
#include "plan/simulate/fetches.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/simulate/simulate.hpp"

namespace starpipe::plan {
namespace {

void require_runs(const Schedule& planned, std::span<const JobRun> jobs) {
  std::vector<bool> seen(planned.id_count(), false);
  for (const JobRun& run : jobs) {
    if (run.job >= planned.id_count() || !planned.exists(run.job)) {
      throw InputError(fmt::format("a measured step has job number {}, which schedule {} does not have",
                                   run.job, planned.name()));
    }
    const std::string name = to_string(planned.job(run.job));
    if (seen[run.job]) throw InputError(fmt::format("a measured step has {} twice", name));
    seen[run.job] = true;
    if (run.worker < 0 || run.worker >= planned.workers()) {
      throw InputError(fmt::format("{} ran on worker {}, which does not exist (workers 0..{})", name,
                                   run.worker, planned.workers() - 1));
    }
    const bool finite = std::isfinite(run.submitted) && std::isfinite(run.ready) &&
                        std::isfinite(run.start) && std::isfinite(run.end);
    if (!finite || run.end < run.start) {
      throw InputError(fmt::format("{} ran from {} to {} (submitted {}, ready {})", name, run.start, run.end,
                                   run.submitted, run.ready));
    }
  }
  for (const JobId id : planned.order()) {
    if (!seen[id]) throw InputError(fmt::format("a measured step lacks {}", to_string(planned.job(id))));
  }
}

// Returns the jobs of `order`, which are in the order of starts, in an order in which n says when memory was
// free for copies: jobs that free memory (O, and W or BW) come where they ended. L from another worker takes
// memory where it starts and frees some where it ends, so there the planned order stays: it is the one that
// ran.
std::vector<JobId> with_memory_in_order(const Schedule& planned, const std::vector<int>& worker,
                                        const std::vector<Span>& spans, std::vector<JobId> order) {
  if (!planned.copies()) return order;
  if (planned.has_peers()) return {planned.order().begin(), planned.order().end()};
  std::vector<double> place(spans.size());
  // Measured spans of one worker may overlap by the clock's resolution; its jobs stay in their order.
  std::vector<double> next(index(planned.workers()), std::numeric_limits<double>::infinity());
  for (auto at = order.rbegin(); at != order.rend(); ++at) {
    const JobId id = *at;
    const Pass pass = planned.job(id).pass;
    place[id] = spans[id].start;
    if (pass == Pass::O) place[id] = spans[id].end;
    if (is_copy(pass)) continue;
    double& after = next[index(worker[id])];
    if (gives_weight_gradient(pass)) place[id] = std::min(spans[id].end, after);
    after = place[id];
  }
  std::ranges::stable_sort(order, {}, [&](JobId id) { return place[id]; });
  return order;
}

// Returns the schedule as it was run: `order` has every job in the order of starts.
Schedule run_in_order(const Schedule& planned, const std::vector<int>& worker,
                      const std::vector<JobId>& order) {
  std::vector<std::int64_t> position(planned.id_count(), 0);
  for (std::size_t i = 0; i < order.size(); ++i) position[order[i]] = static_cast<std::int64_t>(i);
  const auto id = [&](const Job& job) { return *planned.find(job); };
  ScheduleSpec spec = planned.spec();
  spec.placement = [&](const Job& job) {
    return Placement{.weights = planned.placement(id(job)).weights, .compute = worker[id(job)]};
  };
  spec.priority = [&](const Job& job) { return position[planned.first_of_pair(id(job))]; };
  spec.discipline = Discipline::ordered;
  spec.late_recomputation = planned.recomputes_late();
  spec.memory_limits = {};
  return Schedule(spec);
}

// Returns the time at which the worker of `id` began to fetch its inputs, without prefetch.
double fetch_begin(const RecordedStep& step, JobId id) {
  double begin = step.submitted[id];
  step.as_run.for_each_pred(id, [&](JobId p) { begin = std::max(begin, step.timeline.spans[p].end); });
  const std::uint32_t position = step.as_run.position(id);
  if (position > 0) {
    const JobId before = step.as_run.order(step.as_run.compute(id))[position - 1];
    begin = std::max(begin, step.timeline.spans[before].end);
  }
  return begin;
}

// Finds the time at which the weight gradient to which a job adds was free for it. Under a policy that
// chooses the workers, jobs that add to one gradient run sequentially, and a job is ready only when the one
// before has ended.
class FreeGradients {
 public:
  explicit FreeGradients(const RecordedStep& step) : step_(step) {
    const auto moved = [&](JobId id) { return step.as_run.compute(id) != step.planned.compute(id); };
    if (std::ranges::none_of(step.as_run.order(), moved)) return;
    for (const JobId id : step.as_run.order()) {
      if (adds(id)) ends_[key(id)].push_back(step.timeline.spans[id].end);
    }
    for (auto& [gradient, ends] : ends_) std::ranges::sort(ends);
  }

  // Returns the end of the last job that added to the gradient before `id` was ready; 0 when `id` waits for
  // none.
  [[nodiscard]] double since(JobId id) const {
    if (ends_.empty() || !adds(id)) return 0;
    const std::vector<double>& ends = ends_.at(key(id));
    const auto after = std::ranges::upper_bound(ends, step_.timeline.ready[id]);
    return after == ends.begin() ? 0 : *std::prev(after);
  }

 private:
  [[nodiscard]] bool adds(JobId id) const { return gives_weight_gradient(step_.as_run.job(id).pass); }
  // A stage has a gradient on each worker that was to compute it.
  [[nodiscard]] std::pair<int, int> key(JobId id) const {
    return {step_.as_run.job(id).stage, step_.planned.compute(id)};
  }

  const RecordedStep& step_;
  std::map<std::pair<int, int>, std::vector<double>> ends_;
};

// Returns the record of a step. Each transfer that a job receives is observed as far as the times tell.
RecordedStep with_transfers(const Schedule& planned, Schedule as_run, Timeline timeline,
                            std::vector<double> submitted, bool prefetch) {
  const JobId ids = as_run.id_count();
  RecordedStep step = {.planned = planned,
                       .as_run = std::move(as_run),
                       .timeline = std::move(timeline),
                       .submitted = std::move(submitted),
                       .transfer = std::vector<double>(ids, 0),
                       .transfer_observed = std::vector<bool>(ids, false),
                       .prefetch = prefetch};
  const FreeGradients gradients(step);
  for (const JobId id : step.as_run.order()) {
    const LastInput input = last_input(step.as_run, step.timeline, id);
    if (!input.from) continue;
    const double sent = std::max(step.submitted[id], input.produced);
    const double gradient_free = gradients.since(id);
    const double begin = step.prefetch ? std::max(sent, gradient_free) : fetch_begin(step, id);
    // Weights may be on their way before the first job starts, but times count from there.
    step.transfer[id] = std::max(0.0, step.timeline.ready[id] - std::max(0.0, begin));
    const bool whole = input.producer.has_value() || step.submitted[id] >= 0;
    step.transfer_observed[id] =
        step.prefetch ? whole && input.own_produced <= input.produced && gradient_free <= sent : begin >= 0;
  }
  return step;
}

// Returns the worker that sends job `id` its last input, and the worker that runs it.
WorkerPair link_of(const RecordedStep& step, JobId id) {
  return {last_input(step.as_run, step.timeline, id).from.value_or(-1), step.as_run.compute(id)};
}

// By the median of the transfers observed on the same link; where there is none, of all.
void bound_unobserved_transfers(RecordedStep& step) {
  std::vector<double> observed;
  std::map<WorkerPair, double> medians;
  for (const auto& [link, times] : observed_transfers(step)) {
    observed.insert(observed.end(), times.begin(), times.end());
    medians[link] = *lower_median(times);
  }
  const double median = lower_median(std::move(observed)).value_or(0);
  for (const JobId id : step.as_run.order()) {
    if (step.transfer_observed[id] || step.transfer[id] == 0) continue;
    const auto found = medians.find(link_of(step, id));
    step.transfer[id] = std::min(step.transfer[id], found == medians.end() ? median : found->second);
  }
}

}  // namespace

JobTimes RecordedStep::times(bool transfers) const {
  JobTimes times;
  times.duration.assign(as_run.id_count(), 0);
  for (const JobId id : as_run.order()) {
    times.duration[id] = timeline.spans[id].end - timeline.spans[id].start;
  }
  if (transfers) times.transfer = transfer;
  return times;
}

RecordedStep measured_step(const Schedule& planned, std::span<const JobRun> jobs, const Costs& costs) {
  require_runs(planned, jobs);
  double first = std::numeric_limits<double>::infinity();
  for (const JobRun& run : jobs) first = std::min(first, run.start);
  std::vector<Span> spans(planned.id_count());
  std::vector<int> worker(planned.id_count(), 0);
  std::vector<double> ready(planned.id_count(), 0);
  std::vector<double> submitted(planned.id_count(), 0);
  for (const JobRun& run : jobs) {
    spans[run.job] = {run.start - first, run.end - first};
    worker[run.job] = run.worker;
    ready[run.job] = std::min(run.ready, run.start) - first;
    submitted[run.job] = std::min(run.submitted - first, ready[run.job]);
  }
  // Jobs without length may start together although one waits for another. The stable sort then keeps the
  // order of data dependencies.
  std::vector<JobId> order = topological_order(planned);
  std::ranges::stable_sort(order, [&](JobId a, JobId b) {
    const Span& left = spans[a];
    const Span& right = spans[b];
    return left.start != right.start ? left.start < right.start : left.end < right.end;
  });
  Schedule as_run = run_in_order(planned, worker, with_memory_in_order(planned, worker, spans, order));
  if (const CheckResult result = check(as_run); !result.ok()) {
    throw InputError(fmt::format("a measured step of schedule {}: {}", planned.name(), result.problem));
  }
  Timeline timeline = evaluate(as_run, costs, std::move(spans), as_run.rows());
  timeline.ready = std::move(ready);
  RecordedStep step =
      with_transfers(planned, std::move(as_run), std::move(timeline), std::move(submitted), costs.prefetch);
  bound_unobserved_transfers(step);
  return step;
}

RecordedStep simulated_step(const Schedule& schedule, const Costs& costs, const JobTimes& times) {
  if (schedule.has_pairs() && !costs.overlap) return simulated_step(schedule.without_pairs(), costs, times);
  Timeline timeline = simulate(schedule, costs, times);
  std::vector<int> worker(schedule.id_count(), 0);
  for (const JobId id : schedule.order()) worker[id] = schedule.compute(id);
  // An ordered schedule with copies ran as planned. Where a copy ended last, no transfer kept the job
  // waiting.
  if (schedule.copies()) {
    RecordedStep step = with_transfers(schedule, schedule.with(Discipline::ordered), std::move(timeline),
                                       std::vector<double>(schedule.id_count(), 0), costs.prefetch);
    for (const JobId id : step.as_run.order()) {
      if (last_input(step.as_run, step.timeline, id).copied >= step.timeline.ready[id]) step.transfer[id] = 0;
    }
    return step;
  }
  std::vector<JobId> order;
  for (const std::vector<JobId>& row : timeline.order) order.insert(order.end(), row.begin(), row.end());
  return with_transfers(schedule, run_in_order(schedule, worker, order), std::move(timeline),
                        std::vector<double>(schedule.id_count(), 0), costs.prefetch);
}

Kernel kernel_of(const Schedule& as_run, JobId id) {
  const Job job = as_run.job(id);
  return {job.stage, job.pass, as_run.compute(id)};
}

std::map<WorkerPair, std::vector<double>> observed_transfers(const RecordedStep& step) {
  std::map<WorkerPair, std::vector<double>> times;
  for (const JobId id : step.as_run.order()) {
    if (step.transfer_observed[id]) times[link_of(step, id)].push_back(step.transfer[id]);
  }
  return times;
}

LastInput last_input(const Schedule& as_run, const Timeline& timeline, JobId id) {
  const Placement at = as_run.placement(id);
  const Pass pass = as_run.job(id).pass;
  LastInput input;
  for_each_producer(as_run, id, [&](JobId producer) {
    const double end = timeline.spans[as_run.last_of_pair(producer)].end;
    const bool copied = as_run.copies() && is_copy(as_run.job(producer).pass);
    if (copied && (!input.copy || end > input.copied)) {
      input.copy = producer;
      input.copied = end;
    }
    // A copy brings what it copies, and nobody sends anything to it.
    if (as_run.compute(producer) == at.compute || copied || (as_run.copies() && is_copy(pass))) {
      input.own_produced = std::max(input.own_produced, end);
    } else if (!input.producer || end > input.produced) {
      input.from = as_run.compute(producer);
      input.producer = producer;
      input.produced = end;
    }
  });
  const bool fetches_weights = pass != Pass::W && !is_copy(pass) && at.weights != at.compute;
  if (!input.from && fetches_weights) input.from = at.weights;
  return input;
}

}  // namespace starpipe::plan
