// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::plan {

/// Things of one kind that a worker received from others.
struct Received {
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;
  friend bool operator==(const Received&, const Received&) = default;
};

/// Everything that moves to one worker in a step. What a worker receives once and keeps is counted once:
/// an activation that two of its jobs read, the weights of a stage from one holder for all micro-batches of
/// the step (they are dropped after their last use).
struct Transfers {
  Received activations;       ///< outputs of preceding stages, for F, and for B that recomputes
  Received stashes;           ///< where B or W runs on another worker than what made it; B's part for W
  Received gradients;         ///< gradients of succeeding stages, for B
  Received weights;           ///< parameters from their holder, for F and B
  Received weight_gradients;  ///< contributions reduced here, and sums sent to further holders
  friend bool operator==(const Transfers&, const Transfers&) = default;
};

/// Per worker, what `w` alone makes it receive in one step (source 000, "Latency, network, and memory
/// usage from w(s,b,d)"). Independent of time. O(jobs).
std::vector<Transfers> count_transfers(const Schedule& schedule, const Costs& costs);

/// What one worker sends another in a step, all kinds of `Transfers` together.
struct Traffic {
  int from = 0;
  int to = 0;
  Received sent;
  friend bool operator==(const Traffic&, const Traffic&) = default;
};

/// Who sends to whom: one entry for each pair of workers between which anything moves, by sender, then by
/// receiver. Sums over the senders are those of `count_transfers`. O(jobs log workers).
std::vector<Traffic> count_traffic(const Schedule& schedule, const Costs& costs);

}  // namespace starpipe::plan
