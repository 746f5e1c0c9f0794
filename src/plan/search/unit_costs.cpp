// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/search/unit_costs.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "starpipe/base/error.hpp"
#include "starpipe/plan/simulate/simulate.hpp"

namespace starpipe::plan {

std::vector<int> Profile::kinds_of(std::span<const std::string> wanted, int workers) const {
  std::vector<int> kinds;
  for (int w = 0; w < workers; ++w) {
    const std::string& device = wanted[wanted.size() == 1 ? 0 : index(w)];
    const auto at = std::ranges::find(devices, device);
    if (devices.empty() && device == wanted.front()) {
      kinds.push_back(0);
    } else if (at != devices.end()) {
      kinds.push_back(static_cast<int>(at - devices.begin()));
    } else {
      throw InputError(devices.empty() ? fmt::format("times of one kind of device, not of {} and {}",
                                                     wanted.front(), device)
                                       : fmt::format("no times on {}", device));
    }
  }
  return kinds;
}

std::vector<int> equal_cuts(int units, int stages) {
  std::vector<int> cuts;
  for (int s = 1; s < stages; ++s) cuts.push_back(static_cast<int>(std::int64_t{units} * s / stages));
  return cuts;
}

namespace {

bool has_slices(const UnitCosts& unit, std::size_t slices) {
  return !unit.slices.empty() && unit.slices.front().size() == slices;
}

}  // namespace

Costs stage_costs(std::span<const UnitCosts> units, std::span<const int> cuts, std::span<const int> kinds,
                  std::span<const SharedUnits> shared, int wanted_slices) {
  Costs costs;
  const bool by_slice = std::ranges::all_of(
      units, [&](const UnitCosts& unit) { return has_slices(unit, index(wanted_slices)); });
  const std::size_t slices = by_slice && wanted_slices > 1 ? index(wanted_slices) : 1;
  costs.slices = static_cast<int>(slices);
  costs.durations.assign((cuts.size() + 1) * slices, Durations{.F = 0, .B = 0, .W = 0});
  costs.sizes.assign(cuts.size() + 1, StageSizes{});
  std::size_t stage = 0;
  for (std::size_t l = 0; l < units.size(); ++l) {
    if (stage < cuts.size() && index(cuts[stage]) == l) ++stage;
    const int kind = kinds.empty() ? 0 : kinds[stage];
    const StageSizes& sizes = units[l].sizes;
    for (std::size_t k = 0; k < slices; ++k) {
      const Durations& time = slices == 1 ? units[l].on(kind) : units[l].slices[index(kind)][k];
      for (const PassTime& pass : pass_times)
        costs.durations[stage * slices + k].*pass.time += time.*pass.time;
    }
    StageSizes& sum = costs.sizes[stage];
    sum.activation = sizes.activation;
    sum.gradient = sizes.gradient;
    sum.stash += sizes.stash;
    sum.gradient_stash += sizes.gradient_stash;
    sum.weights += sizes.weights;
    sum.master += sizes.master;
  }
  for (const SharedUnits& set : shared) {
    SharedWeights& weights =
        costs.shared.emplace_back(SharedWeights{.stages = {}, .weights = set.weights, .master = set.master});
    for (const int unit : set.units) {
      const auto of_unit = static_cast<int>(std::ranges::upper_bound(cuts, unit) - cuts.begin());
      if (weights.stages.empty() || weights.stages.back() != of_unit) weights.stages.push_back(of_unit);
    }
  }
  if (slices == 1) return costs;
  std::vector<StageSizes> of_slices;
  for (const StageSizes& sizes : costs.sizes) of_slices.insert(of_slices.end(), slices, sizes);
  costs.sizes = std::move(of_slices);
  return costs;
}

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
    int max = 0;
    for (const auto& step : steps) max = std::max(max, live += step.second);
    held.push_back(max);
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
