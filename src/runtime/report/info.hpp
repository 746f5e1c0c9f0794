// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/messages.hpp"
#include "runtime/host/mpi.hpp"
#include "runtime/host/worker_map.hpp"
#include "starpipe/runtime/config/config.hpp"

namespace starpipe::runtime {

/// The columns of the text of `starpipe info`: the name of a fact, and the fact.
inline constexpr std::array info_columns = {TableColumn{.align = Align::left, .min_width = 10},
                                            TableColumn{.align = Align::left}};

/// Returns facts about the runtime for `starpipe info`: versions, this machine as hwloc sees it, its GPUs,
/// StarPU's build and policies, and the kinds of layers. Under a launcher also this rank's share of the
/// cores; the call is then collective, and starts and ends MPI.
nlohmann::ordered_json runtime_facts();
/// Returns the same as text with one fact per line.
std::string runtime_text(const nlohmann::ordered_json& facts);

/// Returns versions by name: of starpipe (with its commit, compiler and build type), StarPU, MPI, OpenBLAS
/// and hwloc.
nlohmann::ordered_json versions();

// The place of each rank, for reports and for `starpipe info`.

/// Returns a table with a line for each rank: its machine, its PUs and cores, who bound it to them, and its
/// workers.
std::string rank_table(std::span<const RankLocation> ranks);

/// Returns the same as an array, with the workers and devices of each rank by slot.
nlohmann::ordered_json ranks_json(std::span<const RankLocation> ranks);

// The mapping of a configuration, for `starpipe info CONFIG`.

/// The nodes and ranks of a mapping.
struct MappingRequest {
  /// A topology file for each node, as `lstopo FILE.xml` writes it; empty for this host. A file may be listed
  /// several times, for a cluster of equal nodes.
  std::vector<std::filesystem::path> nodes;
  int ranks = 0;  ///< MPI ranks, spread over the nodes in blocks; 0: one on each node
};

/// Describes, as text or as JSON for people, the device of each worker of the configured schedule under
/// `runtime.mapping`, node by node; the cores of each rank; and the traffic between workers with the kind of
/// its link. Ranks map workers in the same way when they start, but a launcher may bind them to some cores,
/// or hide some GPUs. Starts no run and reads no data. Throws InputError for a wrong configuration, for a
/// file that is not a topology, and if a node lacks a GPU that the run needs.
std::string describe_mapping(const Config& config, const MappingRequest& request, bool json);

}  // namespace starpipe::runtime
