// SPDX-License-Identifier: Apache-2.0
// What `starpipe sim` hands to the engine on SimGrid.
#pragma once

#include <filesystem>
#include <optional>

#include <nlohmann/json_fwd.hpp>

#include "starpipe/plan/simulate/links.hpp"
#include "starpipe/runtime/config/config.hpp"

namespace starpipe::cli {

/// A simulated run. Each rank reads it from a file and so runs the same configuration.
struct SimulatedRequest {
  std::filesystem::path config;          ///< a whole configuration, with `runtime.emulate`
  std::filesystem::path cluster;         ///< the file of --cluster
  std::optional<plan::Sharing> sharing;  ///< of all of the cluster's levels, in place of what the file says
  int steps = 1;
  std::filesystem::path result;  ///< what rank 0 writes
};

nlohmann::json to_json(const SimulatedRequest& request);
/// Reads what `to_json` wrote.
SimulatedRequest simulated_request(const nlohmann::json& json);

/// The configuration of the request on its cluster: transfers take the cluster's links, also where schedules
/// are made for times. Plug-ins of the configuration must be loaded; the ranks' has none.
runtime::Config configuration_of(const SimulatedRequest& request);

}  // namespace starpipe::cli
