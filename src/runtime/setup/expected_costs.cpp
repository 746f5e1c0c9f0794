// SPDX-License-Identifier: Apache-2.0
#include "starpipe/runtime/setup/expected_costs.hpp"

#include <fmt/format.h>

#include "starpipe/base/error.hpp"

namespace starpipe::runtime {

plan::Costs costs_by_flops(const model::Network& network) {
  double total = 0;
  for (const model::Stage& stage : network.stages) total += stage.flops();
  plan::Costs costs;
  costs.durations.clear();
  for (const model::Stage& stage : network.stages) {
    const double share = total > 0 ? stage.flops() * static_cast<double>(network.stages.size()) / total : 1.0;
    costs.durations.push_back({share, share, share});
  }
  costs.sizes = network.sizes();
  costs.shared = network.shared_weights();
  return costs;
}

plan::Costs emulated_costs(const EmulationConfig& wanted, const model::Network& network) {
  const std::size_t stages = network.stages.size();
  const auto of = [stages](const char* pass, const std::vector<double>& times, std::size_t stage) {
    if (times.size() != 1 && times.size() != stages) {
      throw InputError(fmt::format("runtime.emulate.{}: {} times for {} stages", pass, times.size(), stages));
    }
    return times[times.size() == 1 ? 0 : stage];
  };
  plan::Costs costs;
  costs.durations.clear();
  for (std::size_t s = 0; s < stages; ++s) {
    costs.durations.push_back(
        {.F = of("F", wanted.F, s), .B = of("B", wanted.B, s), .W = of("W", wanted.W, s)});
  }
  costs.sizes = network.sizes();
  costs.shared = network.shared_weights();
  costs.alpha = wanted.comm;
  costs.prefetch = wanted.prefetch;
  return costs;
}

}  // namespace starpipe::runtime
