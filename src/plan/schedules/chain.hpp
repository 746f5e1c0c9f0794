// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

// The periodic theory of Pipelined Model Parallelism asks how short a period a chain of stages can have
// within a memory limit. docs/periodic.md is the tour. Passes are F and BW.

namespace starpipe::plan {

/// Costs of one stage of a chain: a layer of the paper (section 3.1), or the sum over layers that are placed
/// together. All times of a chain are in one unit, all memory in another.
struct ChainStage {
  double forward = 1;     ///< u_F, time of F
  double backward = 1;    ///< u_B, time of BW
  double weights = 0;     ///< W_l, memory that the stage takes under any schedule
  double activation = 1;  ///< a_l, memory of each of its stashes

  /// U = u_F + u_B.
  [[nodiscard]] double time() const { return forward + backward; }
};

/// The largest number of stashes of each stage that fits into `memory` beside the stage's weights. Throws
/// InputError naming the first stage that has no room for one stash.
std::vector<int> stash_limits(std::span<const ChainStage> chain, double memory);

}  // namespace starpipe::plan

namespace starpipe::plan::detail {

/// Throws InputError for an empty chain, a time or size that is negative or not finite, or no time at all.
void require_chain(std::span<const ChainStage> chain);
/// Throws InputError unless there is one limit a stage, each at least 1; also throws as `require_chain`.
void require_limits(std::span<const ChainStage> chain, std::span<const int> limits);

/// U of the stage that takes longest: no period is shorter.
double longest_stage(std::span<const ChainStage> chain);
/// Time from the start of F of `stage` to the end of its BW, for a micro-batch that never waits.
double round_trip(std::span<const ChainStage> chain, int stage);

}  // namespace starpipe::plan::detail
