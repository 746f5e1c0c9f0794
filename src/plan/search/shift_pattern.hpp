// SPDX-License-Identifier: Apache-2.0
#pragma once

// Schedules from a few numbers: due times that repeat, and list scheduling; private to plan.

#include <vector>

#include "plan/search/instance.hpp"
#include "starpipe/base/random.hpp"

namespace starpipe::plan::detail {

/// When F and B of each stage are due: a building block (source 004, section 2) that repeats with a period,
/// or, for groups of micro-batches, group by group with other distances within one. Only the order of the
/// due times matters. And the rules by which a worker leaves that order.
struct Pattern {
  std::vector<double> forward;   ///< of micro-batch 0, by stage
  std::vector<double> backward;  ///< of micro-batch 0, by stage
  double period = 1;             ///< of the mean micro-batch
  int group = 1;
  double forward_spacing = 1;   ///< within a group, in periods
  double backward_spacing = 1;  ///< within a group, in periods
  /// A job goes out of turn if the time until the next in turn arrives is this share of its own or more.
  double forward_gap = 1;
  double backward_gap = 1;
  double weight_gap = 1;
  int weight_backlog = 1 << 30;       ///< with more W waiting than this, one goes first
  bool weights_before_early = false;  ///< in a gap, W goes before F and B out of turn
  double spare = 0;                   ///< share of the memory that F out of turn leaves free
};

/// A pattern of random shape, with the durations of the instance or on a grid of equal ones.
Pattern random_pattern(const Instance& instance, Random& random);
/// One micro-batch after the other: within any limit that some schedule keeps.
Pattern serial_pattern(const Instance& instance);
/// A few random changes.
void mutate(Pattern& pattern, const Instance& instance, Random& random);

}  // namespace starpipe::plan::detail
