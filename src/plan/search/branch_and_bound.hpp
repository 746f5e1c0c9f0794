// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "plan/search/partition_problem.hpp"

namespace starpipe::plan::detail {

struct BestStages {
  std::optional<Stages> stages;  ///< empty: none found within the memory limit
  bool proven = false;           ///< no stages are better, or none exist within the limit
};

/// The best stages for workers that may have several: placed by the request's `stage_workers`, or anywhere in
/// a general allocation. Ends after the request's `steps`; deterministic.
BestStages branch_and_bound(const PartitionProblem& problem, Goal goal);

}  // namespace starpipe::plan::detail
