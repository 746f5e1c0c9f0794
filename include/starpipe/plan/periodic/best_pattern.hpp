// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "starpipe/plan/periodic/pattern.hpp"

namespace starpipe::plan {

/// A time per micro-batch that no schedule within the limits can beat, periodic or not: a stage takes U, and
/// has a micro-batch in hand for at least as long as it and the stages after it take, `limits[s]` of them at
/// once.
double period_bound(std::span<const ChainStage> chain, std::span<const int> limits);

/// The result of `best_pattern`.
struct PeriodicSearch {
  PeriodicPattern pattern;
  /// No pattern considered has a shorter normalized period: `period_bound` is reached, or all were tried.
  bool optimal = false;
};

/// The k-periodic pattern with the shortest normalized period within the limits, k from 1 to `most`; the
/// least such k. Every order is considered in which a stage takes micro-batches one after the other, F and BW
/// alike, and holds at most twice as many stashes as there are stages. Branch and bound from the last stage
/// on; starts from 1F1B* and its thinned patterns. Ends after `work` steps (of some nanoseconds each) with
/// what it has. Throws as `least_period`, or for most < 1. Deterministic.
PeriodicSearch best_pattern(std::span<const ChainStage> chain, std::span<const int> limits, int most,
                            std::int64_t work = 100'000'000);

}  // namespace starpipe::plan
