// SPDX-License-Identifier: Apache-2.0
#include "runtime/report/measurement.hpp"

#include <algorithm>
#include <numeric>

#include "starpipe/base/index.hpp"
#include "starpipe/plan/simulate/simulate.hpp"

namespace starpipe::runtime {
namespace {

// The mean, not the median, because a makespan is a sum. On shared cores durations have two typical values,
// with and without a time slice of another thread; the median would be one of them.
double mean(const std::vector<double>& values) {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

}  // namespace

Measurement::Measurement(const plan::Schedule& schedule, std::vector<plan::StageSizes> sizes,
                         std::optional<plan::Costs> known)
    : schedule_(schedule),
      sizes_(std::move(sizes)),
      known_(std::move(known)),
      durations_(index(schedule.stages()) * plan::pass_count) {}

double Measurement::makespan(const std::vector<JobRecord>& jobs) {
  const auto first = std::ranges::min_element(jobs, {}, &JobRecord::start);
  const auto last = std::ranges::max_element(jobs, {}, &JobRecord::end);
  return last->end - first->start;
}

void Measurement::add_delays(const std::vector<JobRecord>& jobs) {
  std::vector<const JobRecord*> by_job(schedule_.id_count(), nullptr);
  for (const JobRecord& job : jobs) by_job[job.job] = &job;
  std::vector<JobRecord> order = jobs;
  std::ranges::sort(order, {}, &JobRecord::start);
  std::vector<double> free_since(index(schedule_.workers()), 0);
  for (const JobRecord& job : order) {
    double& free = free_since[index(job.worker)];
    const JobRecord* last = nullptr;
    schedule_.for_each_pred(job.job, [&](plan::JobId id) {
      if (last == nullptr || by_job[id]->end > last->end) last = by_job[id];
    });
    const bool waited = last != nullptr && last->worker != job.worker && last->end > free;
    if (waited) delays_.push_back(job.start - last->end);
    free = job.end;
  }
}

void Measurement::add(const StepResult& step) {
  // A warm-up step counts for calibration and measurement until later steps replace it.
  const int number = steps_++;
  workers_ = step.workers;
  if (number <= 1) {
    for (auto& durations : durations_) durations.clear();
    delays_.clear();
  }
  const int calibration = known_ ? 0 : calibration_steps;
  if (number <= calibration) {
    add_delays(step.jobs);
    for (const JobRecord& record : step.jobs) {
      const plan::Job job = schedule_.job(record.job);
      durations_[index(job.stage) * plan::pass_count + index(job.pass)].push_back(record.end - record.start);
    }
  }
  if (number == 1 || number == calibration + 1) {
    makespans_.clear();
    recent_.clear();
  }
  makespans_.push_back(makespan(step.jobs));
  recent_.push_back(step.jobs);
  if (recent_.size() > kept_steps) recent_.pop_front();
}

plan::Costs Measurement::costs() const {
  if (known_) return *known_;
  plan::Costs costs;
  costs.sizes = sizes_;
  costs.durations.clear();
  costs.alpha = std::max(0.0, mean(delays_));
  for (int s = 0; s < schedule_.stages(); ++s) {
    const auto of = [&](plan::Pass pass) {
      return mean(durations_[index(s) * plan::pass_count + index(pass)]);
    };
    const double fused = of(plan::Pass::BW);
    costs.durations.push_back(
        {of(plan::Pass::F), fused > 0 ? fused : of(plan::Pass::B), fused > 0 ? 0 : of(plan::Pass::W)});
  }
  return costs;
}

plan::Timeline Measurement::predicted() const { return plan::simulate(schedule_, costs()); }

MeasuredRun Measurement::measured() const {
  std::vector<const std::vector<JobRecord>*> steps;
  for (const auto& jobs : recent_) steps.push_back(&jobs);
  const auto middle = steps.begin() + static_cast<std::ptrdiff_t>(steps.size() / 2);
  std::ranges::nth_element(steps, middle, {}, [](const auto* jobs) { return makespan(*jobs); });
  const std::vector<JobRecord>& jobs = **middle;

  const double first = std::ranges::min_element(jobs, {}, &JobRecord::start)->start;
  std::vector<plan::Span> spans(schedule_.id_count());
  std::vector<int> worker(schedule_.id_count(), 0);
  std::vector<std::int64_t> order(schedule_.id_count(), 0);
  for (const JobRecord& job : jobs) {
    spans[job.job] = {job.start - first, job.end - first};
    worker[job.job] = job.worker;
    order[job.job] = static_cast<std::int64_t>((job.start - first) * 1e9);
  }
  const auto id = [&](const plan::Job& job) { return *schedule_.find(job); };
  plan::Schedule as_run({.name = schedule_.name(),
                         .graph = schedule_.graph(),
                         .microbatches = schedule_.microbatches(),
                         .workers = schedule_.workers(),
                         .split_backward = [&](int s, int b) { return schedule_.split_backward(s, b); },
                         .placement =
                             [&](const plan::Job& job) {
                               return plan::Placement{.weights = schedule_.placement(id(job)).weights,
                                                      .compute = worker[id(job)]};
                             },
                         .priority = [&](const plan::Job& job) { return order[id(job)]; },
                         .recompute = schedule_.recompute()});
  plan::Costs costs;
  costs.sizes = sizes_;
  std::vector<std::vector<plan::JobId>> rows;
  for (int w = 0; w < as_run.workers(); ++w) {
    const auto row = as_run.order(w);
    rows.emplace_back(row.begin(), row.end());
  }
  plan::Timeline timeline = plan::evaluate(as_run, costs, std::move(spans), std::move(rows));
  return {std::move(as_run), std::move(timeline)};
}

}  // namespace starpipe::runtime
