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

/// Describes, as text or JSON, the device of each worker of the configured schedule under `runtime.mapping`,
/// node by node; the cores of each rank; and the traffic between workers with the kind of its link. Ranks map
/// workers in the same way when they start, but a launcher may bind them to some cores, or hide some GPUs.
/// Starts no run and reads no data. Throws InputError for a wrong configuration, for a file that is not a
/// topology, and if a node lacks a GPU that the run needs.
std::string describe_mapping(const Config& config, const MappingRequest& request, bool json);

}  // namespace starpipe::runtime
