// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "plan/explain/recorded_step.hpp"
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
};

/// A part of the difference: the change from one makespan to the next.
struct DifferencePart {
  const char* name;
  double Difference::*from;
  double Difference::*to;
  const char* meaning;
};
inline constexpr std::array<DifferencePart, 4> difference_parts = {
    {{"durations", &Difference::predicted, &Difference::own_durations,
      "jobs took other times than predicted"},
     {"transfers", &Difference::own_durations, &Difference::own_transfers,
      "results took other times to arrive"},
     {"order", &Difference::own_transfers, &Difference::own_order,
      "jobs ran in another order, or on other workers"},
     {"runtime", &Difference::own_order, &Difference::measured, "StarPU, the policy, the operating system"}}};

/// Where the step ran a job, or a job that it reads from, on another worker than planned, its transfer time
/// counts with the order: `own_transfers` has the predicted time there.
///
/// `costs`: of the prediction. Throws InputError as `simulate` does. O(jobs log jobs).
Difference difference(const RecordedStep& step, const Costs& costs);

/// The steps of a run with their prediction. Times in seconds; steps are counted from 1.
struct ComparedRun {
  int first_step = 1;   ///< the steps from this one are compared, as many as `differences` has entries
  int median_step = 1;  ///< the step with the median makespan
  std::vector<Difference> differences;  ///< of each compared step
  Costs costs;                          ///< of the prediction
  /// Work of each stage's passes in any one unit, such as FLOPs: one entry per stage, or one for all stages.
  std::vector<Durations> work = {Durations{}};
  std::optional<int> groups = {};  ///< with which the schedule was made (ScheduleRequest::groups)
  RecordedStep predicted;          ///< simulated with `costs`
  RecordedStep measured;           ///< step `median_step`
  std::string found = "measured";  ///< what that step is: "measured", or "simulated" by `sim`

  [[nodiscard]] int last_step() const { return first_step + static_cast<int>(differences.size()) - 1; }
  [[nodiscard]] const Difference& median_difference() const {
    return differences[static_cast<std::size_t>(median_step - first_step)];
  }
};

}  // namespace starpipe::plan
