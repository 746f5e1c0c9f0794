// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "plan/search/partition_problem.hpp"

namespace starpipe::plan::detail {

/// The best stages with at most one stage a worker, by dynamic programming; of equal optima the one with the
/// smallest sum of squared loads. Stages are those of the request's `stage_workers`; without `stage_workers`,
/// at most `most` stages on workers in ascending order. Nothing if no stages are within the memory limit.
std::optional<Stages> one_stage_each(const PartitionProblem& problem, int most, Goal goal);

}  // namespace starpipe::plan::detail
