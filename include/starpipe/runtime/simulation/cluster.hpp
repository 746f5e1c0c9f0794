// SPDX-License-Identifier: Apache-2.0
// The machine that `starpipe sim` simulates.
#pragma once

#include <cstdint>

#include "starpipe/plan/simulate/links.hpp"

namespace starpipe::runtime {

/// A cluster of equal nodes with GPUs. A worker is a GPU, and a rank is a node.
struct Cluster {
  int gpus_per_node = 1;
  std::uint64_t gpu_memory = 0;  ///< bytes of each GPU
  plan::Link host_link = {};     ///< between a GPU and its node's main memory, in each direction; in seconds
  /// Between GPUs, in seconds. A node is a group of one of the levels. No port is shared in order.
  plan::Links links = {};

  /// Nodes of a run with this many workers. All nodes have `gpus_per_node` workers, unless one node has them
  /// all. Throws InputError, naming schedule.workers, for other numbers.
  [[nodiscard]] int nodes(int workers) const;
};

}  // namespace starpipe::runtime
