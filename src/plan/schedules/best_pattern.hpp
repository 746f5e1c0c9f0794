// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "plan/schedules/pattern.hpp"

namespace starpipe::plan {

/// Returns a lower bound on the time per micro-batch of all schedules that keep the limits, periodic or not:
/// the largest U of a stage, and for each stage s its round trip divided by `limits[s]`. A stash of s lives
/// at least for the round trip, the sum of U over s and the stages after it, and at most `limits[s]` stashes
/// live at once.
double period_bound(std::span<const ChainStage> chain, std::span<const int> limits);

/// The result of `best_pattern`.
struct PeriodicSearch {
  PeriodicPattern pattern;
  /// True if every pattern that `best_pattern` considers has at least this normalized period: the pattern
  /// reaches `period_bound`, or all patterns were tried.
  bool optimal = false;
};

/// Returns the pattern with the shortest normalized period among the k-periodic patterns that keep the
/// limits, for k from 1 to `max`. Of equal periods, the pattern with the smallest k. The search considers
/// every order in which a stage runs the F of micro-batches in their order, and the BW too, and in which it
/// holds at most twice as many stashes as the chain has stages. It begins with 1F1B* and its thinned
/// patterns, and then does branch and bound from the last stage to the first. After `work` steps (of some
/// nanoseconds each) it ends with the best pattern found so far. Throws as `min_period`. Deterministic.
PeriodicSearch best_pattern(std::span<const ChainStage> chain, std::span<const int> limits, int max,
                            std::int64_t work = 100'000'000);

}  // namespace starpipe::plan
