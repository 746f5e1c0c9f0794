// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::plan::detail {

/// How much there is to compute in each job, so that jobs of different stages can be compared.
class JobWork {
 public:
  /// `work`: one entry a stage, or one for all stages; refers to it. Throws InputError for another number of
  /// entries.
  JobWork(const Schedule& schedule, std::span<const Durations> work);

  /// Of a job of this stage and pass; 0 when unknown.
  [[nodiscard]] double of(int stage, Pass pass) const;

 private:
  std::span<const Durations> work_;
};

}  // namespace starpipe::plan::detail
