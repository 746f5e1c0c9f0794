// SPDX-License-Identifier: Apache-2.0
// What `starpipe partition` prints.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "plan/formats/results.hpp"

namespace starpipe::cli {

/// A partition with its predicted run, and what was asked. Refers to the result, which must outlive it.
struct ShownPartition {
  const plan::PartitionResult& result;
  std::string schedule;  ///< its name
  int microbatches;
  std::vector<std::uint64_t> memory_limits;  ///< bytes, as requested: none, one, or one a worker
};

nlohmann::ordered_json to_json(const ShownPartition& shown);
/// Ends in a newline.
std::string to_text(const ShownPartition& shown);

}  // namespace starpipe::cli
