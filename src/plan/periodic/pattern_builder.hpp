// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "starpipe/plan/periodic/pattern.hpp"

namespace starpipe::plan::detail {

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
