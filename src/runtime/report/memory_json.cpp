// SPDX-License-Identifier: Apache-2.0
#include "runtime/report/memory_json.hpp"

#include <nlohmann/json.hpp>

namespace starpipe::runtime {

std::vector<DeviceNeed> memory_need_of(const Config& config, const Experiment& experiment,
                                       const plan::Costs& costs, const plan::Timeline& timeline) {
  const plan::Schedule& schedule = experiment.schedule;
  return memory_need_over_time(schedule, experiment.network, config.training.optimizer, costs, timeline,
                               {.devices = {}, .on_gpu = config.runtime.on_gpu_of(schedule.workers())},
                               step_rules(config, schedule.microbatches()));
}

nlohmann::ordered_json memory_json(const std::vector<DeviceNeed>& needs) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const DeviceNeed& need : needs) {
    nlohmann::ordered_json& parts = all.emplace_back();
    for (const auto& [name, bytes] : memory_parts) parts[name] = need.peak.*bytes;
  }
  return all;
}

nlohmann::ordered_json memory_over_time_json(const std::vector<DeviceNeed>& needs,
                                             const RuntimeConfig& config) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (std::size_t w = 0; w < needs.size(); ++w) {
    nlohmann::ordered_json& of_worker = all.emplace_back(nlohmann::ordered_json::object());
    if (const auto limit = config.memory_limit_of(static_cast<int>(w))) of_worker["limit"] = *limit;
    for (const auto& [time, bytes] : needs[w].over_time) {
      of_worker["time"].push_back(time);
      of_worker["bytes"].push_back(bytes);
    }
  }
  return all;
}

}  // namespace starpipe::runtime
