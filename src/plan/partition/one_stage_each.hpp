// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "plan/partition/partition_problem.hpp"

namespace starpipe::plan::detail {

/// The best stages on a worker each: those of `stage_workers` of the request, or at most one on each worker,
/// in their order. Nothing when none is within the limit. Among equal ones those with the smallest sum of
/// squares. `most`: as many at most, where there are no `stage_workers`.
std::optional<Stages> one_stage_each(const PartitionProblem& problem, int most, Goal goal);

}  // namespace starpipe::plan::detail
