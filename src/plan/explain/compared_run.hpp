// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plan/explain/difference.hpp"
#include "starpipe/plan/explain/recorded_step.hpp"
#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::plan {

/// The steps of a run beside their prediction. Times in seconds; steps are counted from 1.
struct ComparedRun {
  int first_step = 1;   ///< the steps from this one are compared, as many as `differences` has entries
  int median_step = 1;  ///< the step with the median makespan
  std::vector<Difference> differences;  ///< of each compared step
  Costs costs;                          ///< of the prediction
  /// Work of each stage's passes in any one unit, such as FLOPs: one entry a stage, or one for all stages.
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
