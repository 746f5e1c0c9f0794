// SPDX-License-Identifier: Apache-2.0
#include "cli/input/simulated_request.hpp"

#include <nlohmann/json.hpp>

#include "cli/input/cluster_file.hpp"
#include "cli/input/config_file.hpp"

namespace starpipe::cli {

nlohmann::json to_json(const SimulatedRequest& request) {
  nlohmann::json json = {{"config", request.config.string()},
                         {"cluster", request.cluster.string()},
                         {"steps", request.steps},
                         {"result", request.result.string()}};
  if (request.sharing) json["sharing"] = static_cast<int>(*request.sharing);
  return json;
}

SimulatedRequest simulated_request(const nlohmann::json& json) {
  SimulatedRequest request = {.config = json.at("config").get<std::string>(),
                              .cluster = json.at("cluster").get<std::string>(),
                              .sharing = std::nullopt,
                              .steps = json.at("steps"),
                              .result = json.at("result").get<std::string>()};
  if (json.contains("sharing")) request.sharing = static_cast<plan::Sharing>(json.at("sharing").get<int>());
  return request;
}

runtime::Config configuration_of(const SimulatedRequest& request) {
  runtime::Config config = load_config(request.config, {});
  runtime::EmulationConfig& emulate = config.runtime.emulate.value();
  emulate.links_file = request.cluster.string();
  emulate.links = read_cluster(request.cluster, request.sharing).links;
  emulate.prefetch = true;
  return config;
}

}  // namespace starpipe::cli
