// SPDX-License-Identifier: Apache-2.0
#include "plan/formats/periodic_result.hpp"

#include <limits>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "plan/schedules/best_pattern.hpp"
#include "plan/schedules/busiest_worker_pattern.hpp"
#include "plan/schedules/one_forward_one_backward_star.hpp"
#include "starpipe/plan/registry/registry.hpp"

namespace starpipe::plan {
namespace {

PeriodicResult shortest(const PeriodicRequest& request) {
  if (!request.workers.empty()) {
    for (const auto& [given, part] :
         {std::pair(request.period.has_value(), "period"), {request.repeat.has_value(), "repeat"}}) {
      if (given) throw RequestError(fmt::format("{}: applies to chains with one stage a worker", part));
    }
    const PeriodicPattern pattern = busiest_worker_pattern(request.chain, request.workers);
    return {.pattern = pattern, .bound = pattern.period, .best_of = 1};
  }
  std::vector<int> limits(request.chain.size(), std::numeric_limits<int>::max());
  if (request.memory) limits = stash_limits(request.chain, *request.memory);
  const double bound = period_bound(request.chain, limits);
  if (request.period)
    return {.pattern = one_forward_one_backward_star(request.chain, *request.period), .bound = bound};
  const int most = request.repeat.value_or(1);
  PeriodicSearch best = best_pattern(request.chain, limits, most);
  return {.pattern = std::move(best.pattern), .bound = bound, .best_of = best.optimal ? most : 0};
}

}  // namespace

PeriodicResult solve_periodic(const PeriodicRequest& request) {
  PeriodicResult result = shortest(request);
  const std::vector<double> held = pattern_memory(result.pattern, request.chain);
  for (std::size_t w = 0; w < held.size(); ++w) {
    if (held[w] <= request.memory.value_or(held[w]) * (1 + 1e-9)) continue;
    throw RequestError(fmt::format("memory {}: worker {} would hold {}", *request.memory, w, held[w]));
  }
  return result;
}

Costs costs_of_chain(std::span<const ChainStage> chain) {
  Costs costs;
  costs.durations.clear();
  for (const ChainStage& stage : chain) costs.durations.push_back({stage.forward, stage.backward, 0});
  return costs;
}

nlohmann::ordered_json periodic_json(const PeriodicResult& result, std::span<const ChainStage> chain) {
  nlohmann::ordered_json operations = nlohmann::ordered_json::array();
  for (const PeriodicOperation& op : result.pattern.operations) {
    operations.push_back({{"op", to_string(op.pass)},
                          {"stage", op.stage},
                          {"worker", op.worker},
                          {"start", op.start},
                          {"shift", op.shift}});
  }
  return {{"pattern",
           {{"period", result.pattern.period},
            {"microbatches", result.pattern.microbatches},
            {"normalized_period", result.pattern.normalized_period()},
            {"lower_bound", result.bound},
            {"optimal", result.best_of > 0},
            {"concurrent_activations", concurrent_activations(result.pattern, chain)},
            {"memory", pattern_memory(result.pattern, chain)},
            {"operations", std::move(operations)}}}};
}

}  // namespace starpipe::plan
