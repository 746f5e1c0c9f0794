// SPDX-License-Identifier: Apache-2.0
#include "starpipe/runtime/report/memory_json.hpp"

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
                                             std::span<const std::uint64_t> limits) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const DeviceNeed& need : needs) {
    nlohmann::ordered_json& of_worker = all.emplace_back(nlohmann::ordered_json::object());
    if (!limits.empty()) of_worker["limit"] = limits[limits.size() == 1 ? 0 : all.size() - 1];
    for (const auto& [time, bytes] : need.over_time) {
      of_worker["time"].push_back(time);
      of_worker["bytes"].push_back(bytes);
    }
  }
  return all;
}

}  // namespace starpipe::runtime
