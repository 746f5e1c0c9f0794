// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "starpipe/runtime/config/config.hpp"

namespace starpipe::runtime {

/// The nodes and ranks of a mapping.
struct MappingRequest {
  /// A topology file for each node, as `lstopo FILE.xml` writes it; empty for this host. A file may be listed
  /// several times, for a cluster of equal nodes.
  std::vector<std::filesystem::path> nodes;
  int ranks = 0;  ///< MPI ranks, spread over the nodes in blocks; 0: one on each node
};

/// The device of each worker of the configured schedule under `runtime.mapping`, node by node; the cores of
/// each rank; and the traffic between workers with the kind of its link. As text or JSON. Ranks map workers
/// in the same way when they start, but a launcher may bind them to some cores, or hide some GPUs. Starts
/// nothing and reads no data. Throws InputError for a wrong configuration, a file that is not a topology, and
/// a node without GPU when one is needed.
std::string describe_mapping(const Config& config, const MappingRequest& request, bool json);

}  // namespace starpipe::runtime
