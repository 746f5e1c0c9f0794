// SPDX-License-Identifier: Apache-2.0
#include "plan/explain/step_costs.hpp"

#include <array>
#include <functional>
#include <tuple>

#include <fmt/format.h>

#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::plan {

void StepCosts::add(const RecordedStep& step) {
  const Schedule& schedule = step.planned;
  slices_ = schedule.slices();
  const std::size_t kinds = index(schedule.stages()) * index(slices_) * pass_count;
  means_.resize(kinds);
  std::vector<double> sums(kinds, 0);
  std::vector<int> counts(kinds, 0);
  for (const JobId id : schedule.order()) {
    const Job job = schedule.job(id);
    const std::size_t of_slice = index(job.stage) * index(slices_) + index(schedule.slice(job.microbatch));
    const std::size_t kind = of_slice * pass_count + index(job.pass);
    const double seconds = step.timeline.spans[id].end - step.timeline.spans[id].start;
    sums[kind] += seconds;
    ++counts[kind];
    if (is_copy(job.pass)) {
      const Home home = schedule.home(job.stage, job.microbatch);
      copies_[home.peer() ? Home::at(0) : home].push_back(seconds);
    }
  }
  for (const auto& [link, times] : observed_transfers(step))
    transfers_[link].insert(transfers_[link].end(), times.begin(), times.end());
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
  costs.slices = slices_;
  std::vector<double> links;
  for (const auto& [link, times] : transfers_) links.push_back(*lower_median(times));
  costs.links = Link{.alpha = lower_median(std::move(links)).value_or(0)};
  for (const auto& [home, times] : copies_) {
    (home.peer()          ? costs.peer
     : home == Home::host ? costs.host
                          : costs.disk) = HomeLink{.link = {.alpha = *lower_median(times)}};
  }
  costs.durations.clear();
  for (std::size_t first = 0; first < means_.size(); first += pass_count) {
    const auto of = [&](Pass pass) { return lower_median(means_[first + index(pass)]); };
    const std::optional<double> split = of(Pass::B);
    costs.durations.push_back({.F = of(Pass::F).value_or(0),
                               .B = split ? *split : of(Pass::BW).value_or(0),
                               .W = of(Pass::W).value_or(0)});
  }
  return costs;
}

void require_work(const Schedule& schedule, std::span<const Durations> work) {
  if (work.size() == 1 || work.size() == index(schedule.stages())) return;
  throw InputError(fmt::format("work of {} stages, the schedule has {}", work.size(), schedule.stages()));
}

double work_of(std::span<const Durations> work, int stage, Pass pass) {
  if (is_copy(pass)) return 0;
  return (work.size() == 1 ? work.front() : work[index(stage)]).of(pass);
}

std::vector<KernelSpeed> kernel_speeds(const RecordedStep& step, std::span<const Durations> work) {
  require_work(step.as_run, work);
  std::map<Kernel, KernelSpeed> kernels;
  for (const JobId id : step.as_run.order()) {
    if (is_copy(step.as_run.job(id).pass)) continue;
    const Kernel key = kernel_of(step.as_run, id);
    KernelSpeed& kernel = kernels.try_emplace(key, KernelSpeed{key}).first->second;
    ++kernel.jobs;
    const Span& span = step.timeline.spans[id];
    kernel.mean += span.end - span.start;  // a sum until it is divided below
  }
  std::array<std::vector<double>, pass_count> times;  // of a unit of work, by pass
  std::vector<KernelSpeed> speeds;
  for (auto& [key, kernel] : kernels) {
    kernel.mean /= kernel.jobs;
    const double amount = work_of(work, kernel.stage, kernel.pass);
    if (amount > 0) times[index(kernel.pass)].push_back(kernel.mean / amount);
    speeds.push_back(kernel);
  }
  std::array<double, pass_count> typical = {};
  for (std::size_t pass = 0; pass < pass_count; ++pass) {
    typical[pass] = lower_median(times[pass]).value_or(0);
  }
  for (KernelSpeed& kernel : speeds) {
    const double expected = work_of(work, kernel.stage, kernel.pass) * typical[index(kernel.pass)];
    if (expected > 0) kernel.ratio = kernel.mean / expected;
  }
  std::ranges::stable_sort(speeds, std::greater<>{},
                           [](const KernelSpeed& kernel) { return std::tuple(kernel.ratio, kernel.mean); });
  return speeds;
}

std::vector<LinkSpeed> link_speeds(const RecordedStep& step) {
  std::vector<LinkSpeed> links;
  std::vector<double> medians;
  for (const auto& [link, times] : observed_transfers(step)) {
    medians.push_back(*lower_median(times));
    links.push_back({link, static_cast<int>(times.size()), medians.back()});
  }
  const double typical = lower_median(medians).value_or(0);
  for (LinkSpeed& link : links) {
    if (typical > 0) link.ratio = link.median / typical;
  }
  std::ranges::stable_sort(links, std::greater<>{}, &LinkSpeed::median);
  return links;
}

}  // namespace starpipe::plan
