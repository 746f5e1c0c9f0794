// SPDX-License-Identifier: Apache-2.0
// The machine that `starpipe sim` simulates.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "starpipe/plan/simulate/links.hpp"

namespace starpipe::runtime {

/// A cluster of nodes with equally many GPUs. A worker is a GPU.
struct Cluster {
  int gpus_per_node = 1;
  std::uint64_t gpu_memory = 0;  ///< bytes of each GPU
  /// The kind of the GPUs, for durations by kind: one word for all nodes, or one for each; empty: no kinds.
  std::vector<std::string> devices = {};
  plan::Link host_link = {};  ///< between a GPU and its node's main memory, in each direction; in seconds
  int gpus_per_host_link =
      1;  ///< neighbouring GPUs of a node that share this link; a divisor of gpus_per_node
  std::optional<std::uint64_t> host_memory = {};  ///< see plan::HomeLink::memory
  /// Between GPUs, in seconds. A node is a group of one of the levels. No port is shared in order.
  plan::Links links = {};
  /// True if messages between ranks go from GPU to GPU. SimGrid has no such messages, so `host_link` then
  /// takes no time, for other transfers either.
  bool gpu_direct = false;
  int ranks_per_node = 1;           ///< MPI ranks among which the GPUs of each node are divided
  std::filesystem::path file = {};  ///< that says all this, for messages

  /// Returns the number of nodes of a run with this many workers. All nodes have `gpus_per_node` workers,
  /// unless one node has them all. Throws InputError, naming schedule.workers, for other numbers, and when
  /// `devices` has kinds for fewer nodes.
  [[nodiscard]] int nodes(int workers) const;
  /// Returns the number of MPI ranks of a run with this many workers; all have equally many. Throws
  /// InputError, naming
  /// --ranks-per-node, when the workers of a node cannot be divided so, and as `nodes` does.
  [[nodiscard]] int ranks(int workers) const;
  /// Throws InputError as `ranks` does.
  void check(int workers) const { static_cast<void>(ranks(workers)); }
  /// Returns the kind of a worker's GPU; empty without kinds.
  [[nodiscard]] std::string device(int worker) const;
};

/// The files by which SimGrid and StarPU know a simulated machine.
struct MachineFiles {
  int ranks = 1;
  std::filesystem::path platform;  ///< SimGrid's platform: hosts, links and routes
  std::filesystem::path hosts;     ///< the node of each rank
  /// Environment variables of the ranks: where StarPU finds its files, and its own costs, which are none.
  std::vector<std::pair<std::string, std::string>> environment;
};

/// Writes the files of a run with this many workers into `folder`, which exists. `folder` must not be removed
/// before the run has ended. `copies`: each GPU has two cores that copy stashes, as in `Session`.
MachineFiles write_machine_files(const Cluster& cluster, int workers, const std::filesystem::path& folder,
                                 bool copies = false);

/// Returns the command line of SimGrid's `smpirun` that runs `program` on the machine. `program` is a shared
/// library; smpirun loads a copy of it for each rank. `folder`: for temporary files.
std::vector<std::string> smpirun_command(const MachineFiles& files, const std::filesystem::path& program,
                                         const std::vector<std::string>& arguments,
                                         const std::filesystem::path& folder);

}  // namespace starpipe::runtime
