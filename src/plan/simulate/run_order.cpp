// SPDX-License-Identifier: Apache-2.0
#include "plan/simulate/run_order.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <tuple>

#include "starpipe/base/index.hpp"
#include "starpipe/plan/schedule/check.hpp"

namespace starpipe::plan::detail {

std::vector<std::vector<JobId>> run_order(const Schedule& schedule, const Timeline& timeline) {
  const auto& spans = timeline.spans;
  // Jobs of zero length may start at the same time as others. Data dependencies then tell which ran first.
  std::vector<std::uint32_t> position;
  const bool instants = std::any_of(schedule.order().begin(), schedule.order().end(),
                                    [&](JobId id) { return spans[id].start == spans[id].end; });
  if (instants) {
    position.resize(schedule.id_count());
    std::uint32_t next = 0;
    for (const JobId id : topological_order(schedule)) position[id] = next++;
  }
  std::vector<std::vector<JobId>> rows(index(schedule.workers()));
  for (int worker = 0; worker < schedule.workers(); ++worker) {
    const auto order = schedule.order(worker);
    auto& row = rows[index(worker)];
    row.assign(order.begin(), order.end());
    const auto key = [&](JobId id) {
      return std::tuple(spans[id].start, spans[id].end, instants ? position[id] : schedule.turn(id));
    };
    std::sort(row.begin(), row.end(), [&](JobId a, JobId b) { return key(a) < key(b); });
  }
  return rows;
}

double first_start(const Schedule& schedule, const Timeline& timeline) {
  double first = std::numeric_limits<double>::infinity();
  for (const JobId id : schedule.order()) first = std::min(first, timeline.spans[id].start);
  return std::isfinite(first) ? first : 0;
}

}  // namespace starpipe::plan::detail
