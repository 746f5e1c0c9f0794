// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

namespace starpipe::plan {

/// One stage of a chain: a layer of 002 (section 3.1), or layers that are placed together, summed up. Times
/// are in one unit, memory in another.
struct ChainStage {
  double forward = 1;     ///< u_F, time of F
  double backward = 1;    ///< u_B, time of BW
  double weights = 0;     ///< W_l, memory that the stage takes whatever the schedule
  double activation = 1;  ///< a_l, memory of each of its stashes

  /// U = u_F + u_B.
  [[nodiscard]] double time() const { return forward + backward; }
};

/// By stage, the most stashes that fit into `memory` beside the weights. Throws InputError naming the first
/// stage that has no room for one.
std::vector<int> stash_limits(std::span<const ChainStage> chain, double memory);

}  // namespace starpipe::plan

namespace starpipe::plan::detail {

/// Throws InputError for no stages, a time or size that is negative or not finite, or no time at all.
void require_chain(std::span<const ChainStage> chain);
/// Throws InputError for limits that are not one a stage, or below 1.
void require_limits(std::span<const ChainStage> chain, std::span<const int> limits);

/// U of the stage that takes longest: no period is shorter.
double longest_stage(std::span<const ChainStage> chain);
/// Time from the start of F to the end of BW of a micro-batch that waits nowhere from this stage on.
double round_trip(std::span<const ChainStage> chain, int stage);

}  // namespace starpipe::plan::detail
