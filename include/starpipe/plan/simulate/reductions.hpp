// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "starpipe/plan/schedule/schedule.hpp"

namespace starpipe::plan {

/// One transfer in the reduction of a stage's weight gradient. Worker `from` sends what it has summed so far,
/// and worker `into` adds it to its own sum. A broadcast sends the finished sum, and `into` takes it over.
struct ReductionStep {
  int stage = 0;
  int from = 0;
  int into = 0;
  bool broadcast = false;
  friend bool operator==(const ReductionStep&, const ReductionStep&) = default;
};

/// The steps that reduce the weight gradient of `stage` from its gradient workers to every holder of its
/// weights, in the order in which they run: a binary tree whose root is the first holder, then a broadcast to
/// each further holder. The tree follows from w alone, so sums are reproducible. Empty where one worker is
/// the only gradient worker and the only holder.
std::vector<ReductionStep> reduction_plan(const Schedule& schedule, int stage);

/// Workers that hold the weights of `stage` for any of its jobs, ascending.
std::vector<int> weight_holders(const Schedule& schedule, int stage);

/// Workers that run W or BW of `stage`, and so accumulate its weight gradient, ascending.
std::vector<int> gradient_workers(const Schedule& schedule, int stage);

}  // namespace starpipe::plan
