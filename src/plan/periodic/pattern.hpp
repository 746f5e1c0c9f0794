// SPDX-License-Identifier: Apache-2.0
// What the makers of periodic patterns share.
#pragma once

#include <span>

#include "starpipe/plan/periodic/periodic.hpp"

namespace starpipe::plan::detail {

/// Throws InputError for no stages, a time or size that is negative or not finite, or no time at all.
void require_chain(std::span<const ChainStage> chain);
/// Throws InputError for limits that are not one a stage, or below 1.
void require_limits(std::span<const ChainStage> chain, std::span<const int> limits);

/// U of the stage that takes longest: no period is shorter.
double longest_stage(std::span<const ChainStage> chain);
/// Time from the start of F to the end of BW of a micro-batch that waits nowhere from this stage on.
double round_trip(std::span<const ChainStage> chain, int stage);

/// A k-periodic pattern from when micro-batches 0 to k - 1 run; those before and after follow.
class PatternBuilder {
 public:
  PatternBuilder(double period, int microbatches)
      : pattern_{.period = period, .microbatches = microbatches, .operations = {}} {}

  void add(int stage, Pass pass, int worker, double time, int microbatch);
  /// Its shifts are such that the first BW of stage 0 in the period has 0, the convention of 002.
  [[nodiscard]] PeriodicPattern pattern() const;

 private:
  PeriodicPattern pattern_;
};

}  // namespace starpipe::plan::detail
