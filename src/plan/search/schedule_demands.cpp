// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/search/schedule_demands.hpp"

#include <algorithm>
#include <utility>

#include "starpipe/base/index.hpp"
#include "starpipe/plan/simulate/simulate.hpp"

namespace starpipe::plan {

std::vector<int> stashes_held(const Schedule& schedule) {
  const std::vector<Span> spans = simulate(schedule).spans;
  std::vector<int> held;
  for (int s = schedule.stages() - 1; s >= 0; --s) {
    std::vector<std::pair<double, int>> steps;  // an end sorts before a start at the same time
    for (int b = 0; b < schedule.microbatches(); ++b) {
      steps.emplace_back(spans[schedule.forward(s, b)].start, 1);
      steps.emplace_back(
          std::max(spans[schedule.backward(s, b)].end, spans[schedule.weight_gradient(s, b)].end), -1);
    }
    std::ranges::sort(steps);
    int live = 0;
    int most = 0;
    for (const auto& step : steps) most = std::max(most, live += step.second);
    held.push_back(most);
  }
  return held;
}

std::optional<std::vector<int>> stage_workers_of(const Schedule& schedule) {
  std::vector<int> workers(index(schedule.stages()), -1);
  for (const JobId id : schedule.order()) {
    int& worker = workers[index(schedule.job(id).stage)];
    if (worker >= 0 && worker != schedule.compute(id)) return std::nullopt;
    worker = schedule.compute(id);
  }
  return workers;
}

}  // namespace starpipe::plan
