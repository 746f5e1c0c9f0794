// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "runtime/simulation/cluster.hpp"

namespace starpipe::runtime {

/// The files by which SimGrid and StarPU know a simulated machine.
struct MachineFiles {
  int ranks = 1;
  std::filesystem::path platform;  ///< SimGrid's platform: hosts, links and routes
  std::filesystem::path hosts;     ///< the node of each rank
  /// Environment variables of the ranks: where StarPU finds its files, and its own costs, which are none.
  std::vector<std::pair<std::string, std::string>> environment;
};

/// Writes the files of a run with this many workers into `folder`, which exists. `folder` must not be removed
/// before the run has ended.
MachineFiles write_machine_files(const Cluster& cluster, int workers, const std::filesystem::path& folder);

/// The command line of SimGrid's `smpirun` that runs `program` on the machine. `program` is a shared library;
/// smpirun loads a copy of it for each rank. `folder`: for temporary files.
std::vector<std::string> smpirun_command(const MachineFiles& files, const std::filesystem::path& program,
                                         const std::vector<std::string>& arguments,
                                         const std::filesystem::path& folder);

}  // namespace starpipe::runtime
