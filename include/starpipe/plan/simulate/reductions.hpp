// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "starpipe/plan/schedule/schedule.hpp"

namespace starpipe::plan {

/// One move of the weight-gradient reduction: the contribution of worker `from` is added to that of
/// `into` (or replaces it, for the broadcast to further holders).
struct ReductionStep {
  int stage = 0;
  int from = 0;
  int into = 0;
  bool broadcast = false;
  friend bool operator==(const ReductionStep&, const ReductionStep&) = default;
};

/// How the weight gradients of `stage`, accumulated on each worker that computes W or BW for it, reach
/// every holder of its weights: a binary tree onto the first holder, in an order fixed by the schedule
/// (so sums are reproducible), then a copy to each further holder.
std::vector<ReductionStep> reduction_plan(const Schedule& schedule, int stage);

/// Workers that hold the weights of `stage`, ascending: {w_weights(s, b, d)}.
std::vector<int> weight_holders(const Schedule& schedule, int stage);

/// Workers that accumulate a weight gradient of `stage` (run its W or BW), ascending.
std::vector<int> gradient_workers(const Schedule& schedule, int stage);

}  // namespace starpipe::plan
