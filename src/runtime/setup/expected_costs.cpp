// SPDX-License-Identifier: Apache-2.0
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

/// Returns the times of groups of stages, divided among the stages of each group by their FLOPs; equally in a
/// group that has none. `group_of`: of each stage, an index of `times`.
template <class GroupOf>
std::vector<plan::Durations> divided_by_flops(const std::vector<plan::Durations>& times,
                                              const model::Network& network, GroupOf group_of) {
  std::vector<double> flops(times.size());
  std::vector<double> members(times.size());
  for (std::size_t s = 0; s < network.stages.size(); ++s) {
    flops[group_of(s)] += network.stages[s].flops();
    members[group_of(s)] += 1;
  }
  std::vector<plan::Durations> of_stages;
  for (std::size_t s = 0; s < network.stages.size(); ++s) {
    const std::size_t group = group_of(s);
    const auto part = [&](double time) {
      return flops[group] > 0 ? network.stages[s].flops() * time / flops[group] : time / members[group];
    };
    const auto& [F, B, W] = times[group];
    of_stages.push_back({.F = part(F), .B = part(B), .W = part(W)});
  }
  return of_stages;
}

/// Returns the same for one group.
std::vector<plan::Durations> divided_by_flops(const plan::Durations& times, const model::Network& network) {
  return divided_by_flops(std::vector{times}, network, [](std::size_t) { return std::size_t{0}; });
}

/// Divides the time of each stage among the slices of its sequences, by their FLOPs.
void divide_among_slices(plan::Costs& costs, const model::Network& network) {
  if (network.slices.empty()) return;
  costs.slices = static_cast<int>(network.slices.size());
  std::vector<plan::Durations> of_slices;
  for (std::size_t s = 0; s < network.stages.size(); ++s) {
    const auto& [F, B, W] = costs.durations[costs.durations.size() == 1 ? 0 : s];
    double all = 0;
    for (const std::vector<model::Stage>& slice : network.slices) all += slice[s].flops();
    for (const std::vector<model::Stage>& slice : network.slices) {
      const double part = all > 0 ? slice[s].flops() / all : 1.0 / costs.slices;
      of_slices.push_back({.F = F * part, .B = B * part, .W = W * part});
    }
  }
  costs.durations = std::move(of_slices);
}

}  // namespace

plan::Costs costs_by_flops(const model::Network& network) {
  plan::Costs costs;
  const auto stages = static_cast<double>(network.stages.size());
  costs.durations = divided_by_flops({stages, stages, stages}, network);
  divide_among_slices(costs, network);
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
  if (wanted.copy) costs.set_copy(*wanted.copy);
  if (wanted.peer_copy) costs.peer = plan::HomeLink{.link = {.alpha = *wanted.peer_copy}};
  if (!costs.host) costs.host = wanted.host;
  if (!costs.disk) costs.disk = wanted.disk;
  if (wanted.overlap) costs.overlap = plan::Overlap{.factor = *wanted.overlap};
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
      costs.durations = divided_by_flops({F * workers, B * workers, W * workers}, network);
    }
  }
  if (of_whole_stages) {
    costs.durations = divided_by_flops(costs.durations, network,
                                       [&](std::size_t s) { return index(network.parts[s].stage); });
  }
  divide_among_slices(costs, network);
  costs.sizes = network.sizes();
  costs.shared = network.shared_weights();
  costs.links = wanted.links_file.empty() ? plan::Links(plan::Link{.alpha = wanted.comm}) : wanted.links;
  costs.prefetch = wanted.prefetch;
  return costs;
}

namespace {

[[noreturn]] void refuse_links(const RuntimeConfig& config, const std::string& problem) {
  throw InputError(fmt::format("runtime.links: {}: {}", config.links_file, problem));
}

std::string name_of(const plan::LinkLevel& level, std::size_t number) {
  return level.name.empty() ? fmt::format("level {}", number)
                            : fmt::format("level {} ({})", number, level.name);
}

}  // namespace

plan::Costs with_links_of_ranks(plan::Costs costs, const RuntimeConfig& config, int workers, int ranks) {
  if (config.links_file.empty()) return costs;
  if (costs.links.takes_time())
    throw InputError(
        "runtime.links: does not apply with links of runtime.emulate: they delay the run itself");
  if (workers % ranks != 0)
    refuse_links(config, fmt::format("{} workers cannot be divided equally among {} ranks", workers, ranks));
  const int each = workers / ranks;
  const bool shares_data = !config.uses_gpus();
  costs.workers_of_rank = each;
  costs.ordered_messages = true;
  costs.relays = shares_data;
  if (shares_data && ranks == 1) return costs;
  const std::vector<plan::LinkLevel>& levels = config.links.levels();
  std::vector<plan::LinkLevel> of_run;
  if (shares_data && each > 1) of_run.push_back({.name = "rank", .workers = each});
  for (std::size_t l = 0; l < levels.size(); ++l) {
    const bool is_last = l + 1 == levels.size();
    const int group = levels[l].workers;
    if (!is_last && group < workers && workers % group != 0)
      refuse_links(config,
                   fmt::format("{} has groups of {} workers, which do not divide the {} workers of the run",
                               name_of(levels[l], l), group, workers));
    if (!is_last && group % each != 0 && each % group != 0)
      refuse_links(config, fmt::format("{} has groups of {} workers, a rank has {}", name_of(levels[l], l),
                                       group, each));
    if (is_last || group > each || !shares_data) of_run.push_back(levels[l]);
  }
  costs.links = plan::Links(std::move(of_run));
  return costs;
}

void check_link_levels(const RuntimeConfig& config, int workers, const std::vector<RankLocation>& locations) {
  if (config.links_file.empty()) return;
  std::vector<std::pair<std::string, int>> hosts;  // runs of neighbouring workers
  for (const RankLocation& location : locations) {
    if (hosts.empty() || hosts.back().first != location.machine) hosts.emplace_back(location.machine, 0);
    hosts.back().second += location.workers;
  }
  if (hosts.size() < 2) return;
  const int each = hosts.front().second;
  for (const auto& [machine, count] : hosts) {
    if (count != each)
      refuse_links(
          config,
          fmt::format("host {} has {} neighbouring workers, host {} has {}; the groups of a level are equal",
                      hosts.front().first, each, machine, count));
  }
  const std::vector<plan::LinkLevel>& levels = config.links.levels();
  const auto is_host = [&](const plan::LinkLevel& level) { return level.workers == each; };
  const bool host_is_rank = hosts.size() == locations.size() && !config.uses_gpus();
  if (each == 1 || host_is_rank || std::any_of(levels.begin(), std::prev(levels.end()), is_host)) return;
  refuse_links(config,
               fmt::format("no level has groups of {} workers, the workers of a host, of {}", each, workers));
}

Config with_emulated_times(Config config, std::span<const plan::Durations> of_stages) {
  EmulationConfig emulate = config.runtime.emulate.value_or(EmulationConfig{});
  emulate.per_share = false;
  for (const auto& [times, time] : {std::pair{&emulate.F, &plan::Durations::F},
                                    {&emulate.B, &plan::Durations::B},
                                    {&emulate.W, &plan::Durations::W}}) {
    times->clear();
    for (const plan::Durations& durations : of_stages) times->push_back(durations.*time);
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

OtherSchedule with_schedule(const Config& config, const std::string& name) {
  OtherSchedule other{.config = with_name(config, name)};
  if (!config.runtime.emulate || config.runtime.emulate->per_share) return other;
  const std::string& own = config.schedule.name;
  const double own_stages = stage_count(with_name(config, own));
  const double stages = stage_count(other.config);
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
