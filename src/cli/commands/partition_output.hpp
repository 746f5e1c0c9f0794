// SPDX-License-Identifier: Apache-2.0
// What `starpipe partition` prints.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "starpipe/plan/partition/partition.hpp"
#include "starpipe/plan/simulate/costs.hpp"
#include "starpipe/plan/simulate/timeline.hpp"

namespace starpipe::cli {

/// A partition, the request that it answers, and the predicted run of its stages.
struct PartitionResult {
  const plan::PartitionRequest& request;
  const plan::Partition& found;
  std::string schedule;  ///< its name
  int microbatches;
  std::vector<std::uint64_t> memory_limits;  ///< bytes, as requested: none, one, or one a worker
  plan::Costs costs;                         ///< of the stages
  plan::Timeline timeline;
};

nlohmann::ordered_json to_json(const PartitionResult& result);
/// Ends in a newline.
std::string to_text(const PartitionResult& result);

}  // namespace starpipe::cli
