// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/simulate/timeline.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/numbers.hpp"
#include "plan/simulate/memory_over_time.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::plan {

double first_start(const Timeline& timeline) {
  double first = infinity;
  for (const std::vector<JobId>& row : timeline.order) {
    for (const JobId id : row) first = std::min(first, timeline.spans[id].start);
  }
  return std::isfinite(first) ? first : 0;
}

Timeline evaluate(const Schedule& schedule, const Costs& costs, std::vector<Span> spans,
                  std::vector<std::vector<JobId>> order) {
  Timeline timeline;
  const auto workers = index(schedule.workers());
  timeline.busy.assign(workers, 0);
  double first = infinity;
  double last = -infinity;
  double recomputed = 0;
  for (int worker = 0; worker < schedule.workers(); ++worker) {
    double worker_first = infinity;
    double worker_last = -infinity;
    for (const JobId id : schedule.order(worker)) {
      const Span& span = spans[id];
      timeline.busy[index(worker)] += span.end - span.start;
      if (schedule.job(id).pass == Pass::R) recomputed += span.end - span.start;
      worker_first = std::min(worker_first, span.start);
      worker_last = std::max(worker_last, span.end);
    }
    if (worker_first > worker_last) continue;  // an idle worker
    timeline.device_span = std::max(timeline.device_span, worker_last - worker_first);
    first = std::min(first, worker_first);
    last = std::max(last, worker_last);
  }
  timeline.makespan = last - first;
  double busy = 0;
  for (const double time : timeline.busy) busy += time;
  if (timeline.makespan > 0) {
    const double all = static_cast<double>(workers) * timeline.makespan;
    timeline.bubble_fraction = 1 - busy / all;
    timeline.recomputed_fraction = recomputed / all;
  }
  if (timeline.device_span > 0) {
    timeline.device_bubble_fraction = 1 - *std::ranges::max_element(timeline.busy) / timeline.device_span;
  }
  timeline.spans = std::move(spans);
  timeline.order = std::move(order);
  for (const auto& steps : memory_over_time(schedule, costs, timeline)) {
    timeline.peak_stashes.push_back(0);
    timeline.peak_stash_bytes.push_back(0);
    for (const MemoryStep& step : steps) {
      timeline.peak_stashes.back() = std::max(timeline.peak_stashes.back(), step.stashes);
      timeline.peak_stash_bytes.back() = std::max(timeline.peak_stash_bytes.back(), step.bytes);
    }
  }
  timeline.received = count_transfers(schedule, costs);
  return timeline;
}

}  // namespace starpipe::plan
