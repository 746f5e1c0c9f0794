// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "starpipe/plan/explain/recorded_step.hpp"
#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::plan {

/// The way from the predicted makespan of a step to the measured one, in seconds. Each makespan differs from
/// the one before in one respect, so the differences add up to measured - predicted. To print a sum that adds
/// up to the last digit, round the makespans and subtract these.
struct Difference {
  double predicted = 0;      ///< makespan of the schedule with the expected costs
  double own_durations = 0;  ///< of the schedule, with the step's own durations
  double own_transfers = 0;  ///< of the schedule, with its own durations and transfer times
  double own_order = 0;      ///< of the jobs on the workers and in the order in which they ran
  double measured = 0;

  [[nodiscard]] double durations() const { return own_durations - predicted; }
  [[nodiscard]] double transfers() const { return own_transfers - own_durations; }
  [[nodiscard]] double order() const { return own_order - own_transfers; }
  /// What no simulation has: StarPU, the policy and the operating system.
  [[nodiscard]] double runtime() const { return measured - own_order; }
};

/// `costs`: those of the prediction. Throws InputError as `simulate` does. O(jobs log jobs).
Difference difference(const RecordedStep& step, const Costs& costs);

}  // namespace starpipe::plan
