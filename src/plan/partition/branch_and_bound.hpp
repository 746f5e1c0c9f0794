// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "plan/partition/partition_problem.hpp"

namespace starpipe::plan::detail {

struct Found {
  std::optional<Stages> stages;  ///< none within the limit was found
  bool proven = false;           ///< none is better (or none is within the limit)
};

/// The same where workers may have several stages: as `stage_workers` of the request says, or freely.
Found branch_and_bound(const PartitionProblem& problem, Goal goal);

}  // namespace starpipe::plan::detail
