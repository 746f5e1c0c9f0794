// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "starpipe/plan/schedule/schedule.hpp"

namespace starpipe::plan {

/// One transfer of the weight-gradient reduction of a stage: worker `from` sends its contribution, and worker
/// `into` adds it to its own. A broadcast sends the finished sum, which replaces the contribution of `into`.
struct ReductionStep {
  int stage = 0;
  int from = 0;
  int into = 0;
  bool broadcast = false;
  friend bool operator==(const ReductionStep&, const ReductionStep&) = default;
};

/// The steps that bring the weight gradients of `stage`, accumulated on each worker that computes W or BW for
/// it, to every holder of its weights: a binary tree onto the first holder, then a broadcast to each further
/// holder. The schedule fixes the order, so sums are reproducible.
std::vector<ReductionStep> reduction_plan(const Schedule& schedule, int stage);

/// Workers that hold the weights of `stage`, ascending: {w_weights(s, b, d)}.
std::vector<int> weight_holders(const Schedule& schedule, int stage);

/// Workers that accumulate a weight gradient of `stage` (run its W or BW), ascending.
std::vector<int> gradient_workers(const Schedule& schedule, int stage);

}  // namespace starpipe::plan
