// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "plan/search/instance.hpp"
#include "starpipe/base/random.hpp"

namespace starpipe::plan {

/// A schedule given by a few numbers. Due times of F and B of each stage form a building block (Controllable
/// Memory, section 2) that repeats with a period; only their order matters. With groups of micro-batches, the
/// distances within a group differ. The rest are rules for when a worker leaves the order of the due times.
struct ShiftPattern {
  std::vector<double> forward;   ///< [stage], due time of F of micro-batch 0
  std::vector<double> backward;  ///< [stage], due time of B of micro-batch 0
  double period = 1;             ///< mean distance of micro-batches
  int group = 1;                 ///< micro-batches in a group
  double forward_spacing = 1;    ///< distance of F within a group, in periods
  double backward_spacing = 1;   ///< distance of B within a group, in periods
  /// A job runs early if the gap, the time until the next job in order can start, is at least this multiple
  /// of the job's duration.
  double forward_gap = 1;
  double backward_gap = 1;
  double weight_gap = 1;
  int weight_backlog = 1 << 30;       ///< if more W wait than this, W runs before the job in order
  bool weights_before_early = false;  ///< in a gap, W runs before early F and B
  double spare = 0;                   ///< share of the memory limit that an early F leaves free
};

/// Returns a pattern of random shape, with the durations of the instance or with equal durations on a grid.
ShiftPattern random_pattern(const Instance& instance, Random& random);
/// One micro-batch after the other. It keeps every memory limit that some schedule keeps.
ShiftPattern serial_pattern(const Instance& instance);
/// Makes one to three random changes.
void mutate(ShiftPattern& pattern, const Instance& instance, Random& random);

}  // namespace starpipe::plan
