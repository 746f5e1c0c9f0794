// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "starpipe/runtime/setup/config.hpp"

namespace starpipe::runtime {

/// The machines that a mapping is asked for.
struct MappingRequest {
  /// Topologies of the nodes, as `lstopo FILE.xml` writes them; this host when empty. A node may be there
  /// several times: a cluster of equal ones.
  std::vector<std::filesystem::path> nodes;
  int ranks = 0;  ///< spread over the nodes in blocks; one a node when 0
};

/// Where the workers of the configured schedule go under `runtime.mapping`, drawn node by node, and who sends
/// what to whom over which kind of link; or the same as JSON. What ranks do when they start: there, launchers
/// may bind them, or let them see some of the GPUs only. Starts nothing. Throws InputError as
/// `make_experiment` does but for data, and for nodes that are none, or have no GPU.
std::string describe_mapping(const Config& config, const MappingRequest& request, bool json);

}  // namespace starpipe::runtime
