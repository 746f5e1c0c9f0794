// SPDX-License-Identifier: Apache-2.0
#include "plan/explain/slowness.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <tuple>

#include "plan/explain/job_work.hpp"
#include "plan/explain/lower_median.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::plan {

std::vector<KernelSpeed> kernel_speeds(const RecordedStep& step, std::span<const Durations> work) {
  const detail::JobWork job_work(step.as_run, work);
  std::map<std::tuple<int, Pass, int>, KernelSpeed> kernels;
  for (const JobId id : step.as_run.order()) {
    const Job job = step.as_run.job(id);
    const int worker = step.as_run.compute(id);
    KernelSpeed& kernel = kernels[{job.stage, job.pass, worker}];
    kernel.stage = job.stage;
    kernel.pass = job.pass;
    kernel.worker = worker;
    ++kernel.jobs;
    const Span& span = step.timeline.spans[id];
    kernel.mean += span.end - span.start;  // a sum until it is divided below
  }
  std::array<std::vector<double>, pass_count> times;  // of a unit of work, by pass
  std::vector<KernelSpeed> speeds;
  for (auto& [key, kernel] : kernels) {
    kernel.mean /= kernel.jobs;
    const double amount = job_work.of(kernel.stage, kernel.pass);
    if (amount > 0) times[index(kernel.pass)].push_back(kernel.mean / amount);
    speeds.push_back(kernel);
  }
  std::array<double, pass_count> typical = {};
  for (std::size_t pass = 0; pass < pass_count; ++pass) {
    typical[pass] = detail::lower_median(times[pass]).value_or(0);
  }
  for (KernelSpeed& kernel : speeds) {
    const double expected = job_work.of(kernel.stage, kernel.pass) * typical[index(kernel.pass)];
    if (expected > 0) kernel.ratio = kernel.mean / expected;
  }
  std::ranges::stable_sort(speeds, std::greater<>{},
                           [](const KernelSpeed& kernel) { return std::tuple(kernel.ratio, kernel.mean); });
  return speeds;
}

std::vector<LinkSpeed> link_speeds(const RecordedStep& step) {
  std::map<std::tuple<int, int>, std::vector<double>> times;
  for (const JobId id : step.as_run.order()) {
    if (!step.transfer_observed[id]) continue;
    const LastInput input = last_input(step.as_run, step.timeline, id);
    times[{*input.from, step.as_run.compute(id)}].push_back(step.transfer[id]);
  }
  std::vector<LinkSpeed> links;
  std::vector<double> medians;
  for (const auto& [link, values] : times) {
    const double median = *detail::lower_median(values);
    links.push_back({.from = std::get<0>(link),
                     .to = std::get<1>(link),
                     .transfers = static_cast<int>(values.size()),
                     .median = median});
    medians.push_back(median);
  }
  const double typical = detail::lower_median(medians).value_or(0);
  for (LinkSpeed& link : links) {
    if (typical > 0) link.ratio = link.median / typical;
  }
  std::ranges::stable_sort(links, std::greater<>{}, &LinkSpeed::median);
  return links;
}

}  // namespace starpipe::plan
