// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plan/schedules/pattern.hpp"

namespace starpipe::plan::detail {

/// Makes a k-periodic pattern from the times at which micro-batches 0 to k - 1 run. The pattern repeats them
/// for all other micro-batches.
class PatternBuilder {
 public:
  PatternBuilder(double period, int microbatches)
      : pattern_{.period = period, .microbatches = microbatches, .operations = {}} {}

  /// Adds an operation: `pass` of `microbatch` on `stage` starts at `time`, which may be in any period.
  void add(int stage, Pass pass, int worker, double time, int microbatch);
  /// The pattern of all operations added. As in Pipelined Model Parallelism, the first BW of stage 0 in the
  /// period has shift 0. Stage 0 must have a BW.
  [[nodiscard]] PeriodicPattern pattern() const;

 private:
  PeriodicPattern pattern_;
};

}  // namespace starpipe::plan::detail
