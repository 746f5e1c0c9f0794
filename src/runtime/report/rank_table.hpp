// SPDX-License-Identifier: Apache-2.0
// Where each rank runs, for reports and for `starpipe info`.
#pragma once

#include <span>
#include <string>

#include <nlohmann/json.hpp>

#include "runtime/host/rank_location.hpp"

namespace starpipe::runtime {

/// A line for each rank: its machine, its PUs and cores, who bound it to them, and its workers.
std::string rank_table(std::span<const RankLocation> ranks);

/// The same as an array, with the workers and devices of each rank by slot.
nlohmann::ordered_json ranks_json(std::span<const RankLocation> ranks);

}  // namespace starpipe::runtime
