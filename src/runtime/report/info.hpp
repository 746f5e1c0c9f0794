// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <span>
#include <string>

#include <nlohmann/json.hpp>

#include "base/messages.hpp"
#include "runtime/host/worker_map.hpp"

namespace starpipe::runtime {

/// The columns of the text of `starpipe info`: the name of a fact, and the fact.
inline constexpr std::array info_columns = {TableColumn{.align = Align::left, .min_width = 10},
                                            TableColumn{.align = Align::left}};

/// Facts about the runtime for `starpipe info`: versions, this machine as hwloc sees it, its GPUs, StarPU's
/// build and policies, and the kinds of layers. Under a launcher also this rank's share of the cores; the
/// call is then collective, and starts and ends MPI. Text with one fact a line, or JSON.
std::string describe_runtime(bool json);

/// Versions by name: of starpipe (with its commit, compiler and build type), StarPU, MPI, OpenBLAS and hwloc.
nlohmann::ordered_json versions();

// Where each rank runs, for reports and for `starpipe info`.

/// A line for each rank: its machine, its PUs and cores, who bound it to them, and its workers.
std::string rank_table(std::span<const RankLocation> ranks);

/// The same as an array, with the workers and devices of each rank by slot.
nlohmann::ordered_json ranks_json(std::span<const RankLocation> ranks);

}  // namespace starpipe::runtime
