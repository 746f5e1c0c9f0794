// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <optional>

#include <nlohmann/json_fwd.hpp>

#include "runtime/simulation/cluster.hpp"
#include "starpipe/plan/simulate/links.hpp"
#include "starpipe/runtime/config/config.hpp"

namespace starpipe::cli {

/// Reads the description of a cluster (docs/simulated-clusters.md has the format). `sharing`, of all levels,
/// replaces the file's. Throws InputError, naming file and line, for a key that is unknown or missing, and
/// for an impossible value.
runtime::Cluster read_cluster(const std::filesystem::path& file,
                              std::optional<plan::Sharing> sharing = std::nullopt);

/// A simulated run, as `starpipe sim` hands it to the engine on SimGrid. Each rank reads it from a file and
/// so runs the same configuration.
struct SimulatedRequest {
  std::filesystem::path config;          ///< a whole configuration, with `runtime.emulate`
  std::filesystem::path cluster;         ///< the file of --cluster
  std::optional<plan::Sharing> sharing;  ///< of all levels of the cluster, in place of the file's
  int steps = 1;
  std::filesystem::path result;  ///< what rank 0 writes
};

nlohmann::json to_json(const SimulatedRequest& request);
/// Reads what `to_json` wrote.
SimulatedRequest simulated_request(const nlohmann::json& json);

/// The configuration of the request on its cluster: transfers take the cluster's links, also where schedules
/// are made for times. Its plug-ins must have been loaded; the configuration of ranks names none.
runtime::Config configuration_of(const SimulatedRequest& request);

}  // namespace starpipe::cli
