// SPDX-License-Identifier: Apache-2.0
#include "runtime/setup/expected_costs.hpp"

#include <utility>
#include <vector>

#include <fmt/format.h>

#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::runtime {

namespace {

/// Times of whole stages, divided among the parts of each by their FLOPs.
std::vector<plan::Durations> times_of_parts(const std::vector<plan::Durations>& of_stages,
                                            const model::Network& network) {
  std::vector<double> flops(of_stages.size());
  for (std::size_t s = 0; s < network.stages.size(); ++s)
    flops[index(network.parts[s].stage)] += network.stages[s].flops();
  std::vector<plan::Durations> times;
  for (std::size_t s = 0; s < network.stages.size(); ++s) {
    const std::size_t stage = index(network.parts[s].stage);
    const double share = network.stages[s].flops() / flops[stage];
    const auto& [F, B, W] = of_stages[stage];
    times.push_back({.F = F * share, .B = B * share, .W = W * share});
  }
  return times;
}

/// [stage]: its part of `whole` in proportion to its FLOPs. Equal parts for a model that has none.
std::vector<double> divided_by_flops(double whole, const model::Network& network) {
  double total = 0;
  for (const model::Stage& stage : network.stages) total += stage.flops();
  const auto stages = static_cast<double>(network.stages.size());
  std::vector<double> parts;
  for (const model::Stage& stage : network.stages) {
    parts.push_back(total > 0 ? stage.flops() * whole / total : whole / stages);
  }
  return parts;
}

}  // namespace

plan::Costs costs_by_flops(const model::Network& network) {
  plan::Costs costs;
  costs.durations.clear();
  for (const double share : divided_by_flops(static_cast<double>(network.stages.size()), network)) {
    costs.durations.push_back({share, share, share});
  }
  costs.sizes = network.sizes();
  costs.shared = network.shared_weights();
  return costs;
}

plan::Costs emulated_costs(const EmulationConfig& wanted, const model::Network& network, int workers) {
  const auto stages = static_cast<int>(network.stages.size());
  // With shards the times may be those of whole stages.
  const auto fits = [&](const std::vector<double>& times) {
    return times.size() == 1 || std::cmp_equal(times.size(), network.whole_stages());
  };
  const bool of_whole_stages =
      !wanted.per_share && !network.parts.empty() && fits(wanted.F) && fits(wanted.B) && fits(wanted.W);
  const std::size_t parts = index(wanted.per_share  ? workers
                                  : of_whole_stages ? network.whole_stages()
                                                    : stages);
  const auto of = [&](const char* pass, const std::vector<double>& times, std::size_t part) {
    if (times.size() != 1 && times.size() != parts) {
      throw InputError(fmt::format("runtime.emulate.{}: {} times for {} {}", pass, times.size(), parts,
                                   wanted.per_share ? "workers" : "stages"));
    }
    return times[times.size() == 1 ? 0 : part];
  };
  plan::Costs costs;
  costs.durations.clear();
  for (std::size_t p = 0; p < parts; ++p) {
    costs.durations.push_back(
        {.F = of("F", wanted.F, p), .B = of("B", wanted.B, p), .W = of("W", wanted.W, p)});
  }
  if (wanted.per_share) {
    const bool one_for_all = wanted.F.size() == 1 && wanted.B.size() == 1 && wanted.W.size() == 1;
    if (one_for_all) costs.durations.resize(1);
    if (!one_for_all && !network.parts.empty()) {
      throw InputError("runtime.emulate.per_share: a list of times does not apply with shards");
    }
    if (!one_for_all && stages % workers != 0) {
      throw InputError(
          fmt::format("runtime.emulate.per_share: times of {} shares cannot be divided among {} stages",
                      workers, stages));
    }
    if (network.parts.empty()) {
      costs = plan::costs_of_stages(costs, workers, stages);
      costs.durations.resize(index(stages), costs.durations.front());
    } else {
      const auto [F, B, W] = costs.durations.front();
      costs.durations.clear();
      for (const double shares : divided_by_flops(workers, network)) {
        costs.durations.push_back({.F = F * shares, .B = B * shares, .W = W * shares});
      }
    }
  }
  if (of_whole_stages) costs.durations = times_of_parts(costs.durations, network);
  costs.sizes = network.sizes();
  costs.shared = network.shared_weights();
  costs.links = wanted.links_file.empty() ? plan::Links(plan::Link{.alpha = wanted.comm}) : wanted.links;
  costs.prefetch = wanted.prefetch;
  return costs;
}

Config with_emulated_times(Config config, std::span<const plan::Durations> of_stages) {
  EmulationConfig emulate = config.runtime.emulate.value_or(EmulationConfig{});
  emulate.per_share = false;
  emulate.F.clear();
  emulate.B.clear();
  emulate.W.clear();
  for (const auto& [F, B, W] : of_stages) {
    emulate.F.push_back(F);
    emulate.B.push_back(B);
    emulate.W.push_back(W);
  }
  config.runtime.emulate = std::move(emulate);
  config.runtime.device = {std::string(cpu_device)};
  return config;
}

}  // namespace starpipe::runtime
