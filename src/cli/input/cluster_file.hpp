// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <optional>

#include <nlohmann/json_fwd.hpp>

#include "runtime/simulation/cluster.hpp"
#include "starpipe/plan/simulate/links.hpp"
#include "starpipe/runtime/config/config.hpp"

namespace starpipe::cli {

/// Reads the description of a cluster (docs/simulated-clusters.md has the format). Strict: throws InputError,
/// naming file and line, for a key that is unknown or missing, and for a value that cannot be. `sharing`: of
/// all levels, in place of what the file says.
runtime::Cluster read_cluster(const std::filesystem::path& file,
                              std::optional<plan::Sharing> sharing = std::nullopt);

// What `starpipe sim` hands to the engine on SimGrid.

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
