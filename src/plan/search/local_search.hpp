// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "plan/search/partition_problem.hpp"

namespace starpipe::plan::detail {

/// The largest load or memory of a worker.
double value_of(const PartitionProblem& problem, Goal goal, const Stages& stages);

/// Stages from the worker of each unit: neighbouring units on one worker are one stage.
Stages stages_of(const std::vector<int>& owner);

/// A good partition to start from: the better of the contiguous optimum and a greedy partition, both
/// improved. For general allocations an improvement moves a unit or swaps two, for placed stages it moves
/// cuts. Nothing if no partition found is within the memory limit. The work is bounded.
std::optional<Stages> local_search(const PartitionProblem& problem, Goal goal);

/// Repeats random changes and improvements of the best partition so far, from `start` on. The result is at
/// least as good as `start`; nothing without `start`. The work is bounded. Deterministic.
std::optional<Stages> iterated_local_search(const PartitionProblem& problem, Goal goal,
                                            std::optional<Stages> start);

}  // namespace starpipe::plan::detail
