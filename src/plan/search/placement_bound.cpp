// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/search/placement_bound.hpp"

#include <algorithm>
#include <limits>
#include <vector>

#include "plan/simulate/fetches.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/schedule/check.hpp"

namespace starpipe::plan {

double placement_bound(const Schedule& schedule, const Costs& costs) {
  const detail::Fetches fetches(schedule, costs);
  // Calls f(job that `id` waits for, least time between the two).
  const auto for_each_wait = [&](JobId id, auto&& f) {
    schedule.for_each_pred(id, [&](JobId before) { f(before, 0.0); });
    if (!costs.prefetch) return;
    fetches.for_each(id, [&](const detail::Fetch& fetch) {
      if (fetch.kind == detail::Fetch::Kind::weights) return;
      f(fetch.producer, costs.link(fetch.from, schedule.compute(id)).time(fetch.bytes));
    });
  };
  const auto duration = [&](JobId id) {
    const Job job = schedule.job(id);
    return costs.duration(job.stage).of(job.pass);
  };
  const std::vector<JobId> order = topological_order(schedule);
  std::vector<double> start(schedule.id_count(), 0);  // earliest
  std::vector<double> after(schedule.id_count(), 0);  // least time from the job's end to the end of all
  for (const JobId id : order) {
    for_each_wait(id, [&](JobId before, double time) {
      start[id] = std::max(start[id], start[before] + duration(before) + time);
    });
  }
  for (const JobId id : std::vector<JobId>(order.rbegin(), order.rend())) {
    for_each_wait(id, [&](JobId before, double time) {
      after[before] = std::max(after[before], time + duration(id) + after[id]);
    });
  }
  double bound = 0;
  for (int w = 0; w < schedule.workers(); ++w) {
    double work = 0;
    double first = std::numeric_limits<double>::infinity();
    double last = first;
    for (const JobId id : schedule.order(w)) {
      bound = std::max(bound, start[id] + duration(id) + after[id]);
      work += duration(id);
      first = std::min(first, start[id]);
      last = std::min(last, after[id]);
    }
    if (work > 0) bound = std::max(bound, first + work + last);
  }
  return bound;
}

}  // namespace starpipe::plan
