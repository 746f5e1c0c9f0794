// SPDX-License-Identifier: Apache-2.0
// Measurement of report.hpp.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "plan/explain/step_costs.hpp"
#include "runtime/report/report.hpp"

namespace starpipe::runtime {
namespace {

std::size_t steps_to_keep(const plan::Schedule& schedule) {
  return std::max(Measurement::max_jobs / schedule.job_count(), Measurement::fewest_steps);
}

double in_nanoseconds(double seconds) { return std::round(seconds * 1e9) * 1e-9; }

// Times are whole nanoseconds from the first start, as reports keep them. So a report that is read back gives
// the same figures. Returns the first start.
double count_from_first_start(std::vector<plan::JobRun>& jobs) {
  const double first = std::ranges::min_element(jobs, {}, &plan::JobRun::start)->start;
  for (plan::JobRun& job : jobs) {
    for (double* const time : {&job.submitted, &job.ready, &job.start, &job.end})
      *time = in_nanoseconds(*time - first);
  }
  return first;
}

// Returns the difference in whole nanoseconds, as reports keep it.
plan::Difference in_nanoseconds(plan::Difference difference) {
  for (double* const makespan : {&difference.predicted, &difference.own_durations, &difference.own_transfers,
                                 &difference.own_order, &difference.measured}) {
    *makespan = in_nanoseconds(*makespan);
  }
  return difference;
}

double makespan(const std::vector<plan::JobRun>& jobs) {
  return std::ranges::max_element(jobs, {}, &plan::JobRun::end)->end;
}

}  // namespace

Measurement::Measurement(const plan::Schedule& schedule, plan::Costs costs, bool known)
    : schedule_(schedule), costs_(std::move(costs)), known_(known) {}

void Measurement::begin_step() {
  if (++steps_ == 2) {  // the first step warmed up
    makespans_.clear();
    kept_.clear();
    summed_.clear();
  }
  if (kept_.size() < steps_to_keep(schedule_)) return;
  kept_.pop_front();
  summed_.pop_front();
}

void Measurement::end_step(StepResult step) {
  workers_ = std::move(step.workers);
  prefetch_ = step.prefetch;
  double last_sum = 0;
  for (const WorkerRecord& worker : workers_) last_sum = std::max(last_sum, worker.last_sum);
  const double first = count_from_first_start(step.jobs);
  kept_.push_back(std::move(step.jobs));
  makespans_.push_back(makespan(kept_.back()));
  summed_.push_back(std::max(makespans_.back(), in_nanoseconds(last_sum - first)));
}

// A recorded step is far larger than its jobs, so only one exists at a time, and each is made twice.
plan::ComparedRun Measurement::compared() const {
  plan::Costs sizes;
  sizes.slices = costs_.slices;
  sizes.sizes = costs_.sizes;
  sizes.shared = costs_.shared;
  sizes.prefetch = prefetch_;
  const auto recorded = [&](const auto& jobs) { return plan::measured_step(schedule_, jobs, sizes); };
  const auto costs = [&] {
    if (known_) return costs_;
    plan::StepCosts all;
    for (const auto& jobs : kept_) all.add(recorded(jobs));
    plan::Costs measured = all.costs(costs_.sizes, costs_.shared);
    if (!costs_.links.takes_time()) return measured;
    measured.links = costs_.links;
    measured.workers_of_rank = costs_.workers_of_rank;
    measured.ordered_messages = costs_.ordered_messages;
    measured.relays = costs_.relays;
    measured.messages_pass_hosts = costs_.messages_pass_hosts;
    return measured;
  }();
  std::vector<plan::Difference> differences;
  for (const auto& jobs : kept_)
    differences.push_back(in_nanoseconds(plan::difference(recorded(jobs), costs)));
  std::vector<std::size_t> by_makespan(kept_.size());
  std::iota(by_makespan.begin(), by_makespan.end(), std::size_t{0});
  const auto median = by_makespan.begin() + static_cast<std::ptrdiff_t>(kept_.size() / 2);
  std::ranges::nth_element(by_makespan, median, {}, [&](std::size_t i) { return makespan(kept_[i]); });
  const int first = steps_ - static_cast<int>(kept_.size()) + 1;
  plan::ComparedRun run{.first_step = first,
                        .median_step = first + static_cast<int>(*median),
                        .differences = std::move(differences),
                        .costs = costs,
                        .work = plan::costs_of_microbatches(costs_).durations,
                        .predicted = plan::simulated_step(schedule_, costs),
                        .measured = recorded(kept_[*median])};
  if (run.predicted.timeline.gradients_summed && prefetch_)
    run.measured.timeline.gradients_summed = summed_[*median];
  return run;
}

}  // namespace starpipe::runtime
