// SPDX-License-Identifier: Apache-2.0
#include "measurement.hpp"

#include <algorithm>
#include <set>

namespace starpipe::runtime {
namespace {

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace

std::uint64_t bytes_between_ranks(const TaskGraph& graph, const WorkerMap& map) {
  std::set<std::pair<std::size_t, int>> moves;
  for (const Task& task : graph.tasks()) {
    const int reader = map.rank_of(task.worker);
    for (const DataAccess& access : task.data) {
      if (access.access == Access::read && map.rank_of(graph.data()[access.datum].worker) != reader) {
        moves.emplace(access.datum, reader);
      }
    }
  }
  std::uint64_t bytes = 0;
  for (const auto& [datum, rank] : moves) bytes += graph.data()[datum].size * sizeof(float);
  return bytes;
}

Measurement::Measurement(const plan::Schedule& schedule, std::vector<plan::StageSizes> sizes)
    : schedule_(schedule), sizes_(std::move(sizes)), durations_(static_cast<std::size_t>(schedule.stages()) * 4) {}

double Measurement::makespan(const std::vector<JobRecord>& jobs) {
  const auto first = std::ranges::min_element(jobs, {}, &JobRecord::start);
  const auto last = std::ranges::max_element(jobs, {}, &JobRecord::end);
  return last->end - first->start;
}

void Measurement::add(const StepResult& step) {
  // Until there is a better step, a warm-up step counts for both.
  const int number = steps_++;
  workers_ = step.workers;
  if (number <= 1) {
    for (auto& durations : durations_) durations.clear();
  }
  if (number <= calibration_steps) {
    for (const JobRecord& record : step.jobs) {
      const plan::Job job = schedule_.job(record.job);
      durations_[static_cast<std::size_t>(job.stage) * 4 + static_cast<std::size_t>(job.pass)].push_back(record.end - record.start);
    }
  }
  if (number == 1 || number == calibration_steps + 1) {
    makespans_.clear();
    recent_.clear();
  }
  makespans_.push_back(makespan(step.jobs));
  recent_.push_back(step.jobs);
  if (recent_.size() > window) recent_.pop_front();
}

plan::Costs Measurement::costs() const {
  plan::Costs costs;
  costs.sizes = sizes_;
  costs.durations.clear();
  for (int s = 0; s < schedule_.stages(); ++s) {
    const auto of = [&](plan::Pass pass) {
      return median(durations_[static_cast<std::size_t>(s) * 4 + static_cast<std::size_t>(pass)]);
    };
    const double fused = of(plan::Pass::BW);
    costs.durations.push_back({of(plan::Pass::F), fused > 0 ? fused : of(plan::Pass::B), fused > 0 ? 0 : of(plan::Pass::W)});
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
  std::vector<plan::Span> spans(schedule_.slots());
  std::vector<int> worker(schedule_.slots(), 0);
  std::vector<std::int64_t> order(schedule_.slots(), 0);
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
                         .priority = [&](const plan::Job& job) { return order[id(job)]; }});
  plan::Costs costs;
  costs.sizes = sizes_;
  plan::Timeline timeline = plan::evaluate(as_run, costs, std::move(spans));
  return {std::move(as_run), std::move(timeline)};
}

}  // namespace starpipe::runtime
