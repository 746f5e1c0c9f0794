// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "plan/partition/partition_problem.hpp"

namespace starpipe::plan::detail {

/// The largest load or memory of a worker.
double value_of(const PartitionProblem& problem, Goal goal, const Stages& stages);

/// Stages from the worker of each unit: neighbours on one worker are a stage.
Stages stages_of(const std::vector<int>& owner);

/// A good partition to start from: the contiguous one and a greedy one, improved as long as moving a unit,
/// swapping two (general allocations) or moving cuts (placed stages) helps. Nothing when none is within the
/// limit. Bounded.
std::optional<Stages> local_search(const PartitionProblem& problem, Goal goal);

/// Shakes and improves `start`, if there is one, again and again; at least as good. Bounded, deterministic.
std::optional<Stages> iterated_local_search(const PartitionProblem& problem, Goal goal,
                                            std::optional<Stages> start);

}  // namespace starpipe::plan::detail
