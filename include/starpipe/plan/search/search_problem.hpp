// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>
#include <vector>

#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::plan {

/// A chain of stages, each placed on one worker, to find an order for. The backward pass is split.
struct SearchProblem {
  int workers = 1;
  int microbatches = 1;
  /// Worker of each stage. Every worker has at least one stage.
  std::vector<int> stage_workers = {0};
  /// Durations of each stage and costs of transfers. Transfers overlap compute.
  Costs costs = {};
  /// Memory of one stash of each stage, or one entry for all stages, in the unit of the limit.
  std::vector<double> stash = {1};
  /// Largest memory of all stashes on a worker: one limit for all workers, or one for each.
  std::vector<double> memory_limits = {std::numeric_limits<double>::infinity()};
};

}  // namespace starpipe::plan
