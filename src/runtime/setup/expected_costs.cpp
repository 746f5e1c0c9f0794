// SPDX-License-Identifier: Apache-2.0
#include "runtime/setup/expected_costs.hpp"

#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "runtime/setup/experiment.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/model/network.hpp"
#include "starpipe/plan/registry/plugin.hpp"
#include "starpipe/plan/registry/registry.hpp"

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
  // With shards the times may be given for whole stages.
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

namespace {

Config with_name(Config config, const std::string& name) {
  for (const std::string& file : plan::load_plugins_without(config.schedule.plugins, name)) {
    std::erase(config.schedule.plugins, file);
  }
  if (config.schedule.name != name) config.schedule.options.clear();  // they are of the other schedule
  config.schedule.name = name;
  return config;
}

model::Network network_of(const Config& config) {
  return model::build_network(config.model, config.training.microbatch_size, stage_count(config),
                              config.schedule.cuts);
}

OtherSchedule with_schedule(const Config& config, const std::string& name) {
  OtherSchedule other{.config = with_name(config, name)};
  if (!config.runtime.emulate || config.runtime.emulate->per_share) return other;
  const std::string& own = config.schedule.name;
  const double own_stages = network_of(with_name(config, own)).whole_stages();
  const double stages = network_of(other.config).whole_stages();
  if (stages == own_stages) return other;
  other.stage_share = own_stages / stages;
  EmulationConfig& emulate = *other.config.runtime.emulate;
  for (const auto& [pass, times] :
       {std::pair{"F", &emulate.F}, std::pair{"B", &emulate.B}, std::pair{"W", &emulate.W}}) {
    if (times->size() != 1) {
      throw InputError(fmt::format("{}: runtime.emulate.{} has times of the {} stages of {}, {} has {}", name,
                                   pass, own_stages, own, name, stages));
    }
    times->front() *= other.stage_share;
  }
  return other;
}

}  // namespace

std::vector<OtherSchedule> with_schedules(const Config& config, const std::vector<std::string>& names) {
  if (config.schedule.file) {
    throw InputError("--schedules: schedule.file: a schedule of a file has no name to replace");
  }
  for (const std::string& file : config.schedule.plugins) plan::load_plugin(file);
  std::vector<OtherSchedule> others;
  std::set<std::string> schedules;  // by name: an alias is another word for the same schedule
  try {
    for (const std::string& name : names) {
      if (!schedules.insert(plan::find_schedule(name).name).second) {
        throw InputError(fmt::format("'{}' is named twice", name));
      }
      others.push_back(with_schedule(config, name));
    }
  } catch (const InputError& error) {
    throw InputError(fmt::format("--schedules: {}", error.what()));
  }
  return others;
}

}  // namespace starpipe::runtime
