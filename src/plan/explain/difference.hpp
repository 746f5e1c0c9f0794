// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "starpipe/plan/explain/recorded_step.hpp"
#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::plan {

/// Five makespans of one step, in seconds, from the predicted to the measured one. Those between
/// are simulated, each with one more thing as it was measured. So the four differences add up to measured -
/// predicted. To print figures that add up to the last digit, round the makespans before you subtract them.
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

/// Where the step ran a job, or a job that it reads from, on another worker than planned, its transfer time
/// counts with the order: `own_transfers` has the predicted time there.
///
/// `costs`: those of the prediction. Throws InputError as `simulate` does. O(jobs log jobs).
Difference difference(const RecordedStep& step, const Costs& costs);

}  // namespace starpipe::plan
