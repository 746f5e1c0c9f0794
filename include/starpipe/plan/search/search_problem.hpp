// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>
#include <vector>

#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::plan {

/// One placement to find an order for: a chain of stages, each on one worker, the backward pass split.
struct SearchProblem {
  int workers = 1;
  int microbatches = 1;
  /// Worker of each stage. Every worker has one at least.
  std::vector<int> stage_workers = {0};
  /// Durations of each stage, and what transfers cost. Transfers overlap compute.
  Costs costs = {};
  /// What one stash of each stage takes, or a single entry for all, in the unit of the limit.
  std::vector<double> stash = {1};
  /// Most that the stashes on one worker may take together.
  double memory_limit = std::numeric_limits<double>::infinity();
};

}  // namespace starpipe::plan
