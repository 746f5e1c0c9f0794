// SPDX-License-Identifier: Apache-2.0
#include "plan/explain/step_costs.hpp"

#include <utility>

#include "plan/explain/lower_median.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::plan {

void StepCosts::add(const RecordedStep& step) {
  const Schedule& schedule = step.planned;
  const std::size_t kinds = index(schedule.stages()) * pass_count;
  means_.resize(kinds);
  std::vector<double> sums(kinds, 0);
  std::vector<int> counts(kinds, 0);
  for (const JobId id : schedule.order()) {
    const Job job = schedule.job(id);
    const std::size_t kind = index(job.stage) * pass_count + index(job.pass);
    sums[kind] += step.timeline.spans[id].end - step.timeline.spans[id].start;
    ++counts[kind];
    if (!step.transfer_observed[id]) continue;
    const int from = *last_input(step.as_run, step.timeline, id).from;
    transfers_[{from, step.as_run.compute(id)}].push_back(step.transfer[id]);
  }
  for (std::size_t kind = 0; kind < kinds; ++kind) {
    if (counts[kind] > 0) means_[kind].push_back(sums[kind] / counts[kind]);
  }
  prefetch_ = step.prefetch;
}

Costs StepCosts::costs(std::vector<StageSizes> sizes, std::vector<SharedWeights> shared) const {
  Costs costs;
  costs.sizes = std::move(sizes);
  costs.shared = std::move(shared);
  costs.prefetch = prefetch_;
  std::vector<double> links;
  for (const auto& [between, times] : transfers_) links.push_back(*detail::lower_median(times));
  costs.links = Link{.alpha = detail::lower_median(std::move(links)).value_or(0)};
  costs.durations.clear();
  for (std::size_t first = 0; first < means_.size(); first += pass_count) {
    const auto of = [&](Pass pass) { return detail::lower_median(means_[first + index(pass)]); };
    const std::optional<double> split = of(Pass::B);
    costs.durations.push_back({.F = of(Pass::F).value_or(0),
                               .B = split ? *split : of(Pass::BW).value_or(0),
                               .W = of(Pass::W).value_or(0)});
  }
  return costs;
}

}  // namespace starpipe::plan
