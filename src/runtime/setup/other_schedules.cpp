// SPDX-License-Identifier: Apache-2.0
#include "runtime/setup/other_schedules.hpp"

#include <set>
#include <utility>

#include <fmt/format.h>

#include "runtime/setup/planned_run.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/model/network.hpp"
#include "starpipe/plan/registry/plugin.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "runtime/setup/expected_costs.hpp"

namespace starpipe::runtime {
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
