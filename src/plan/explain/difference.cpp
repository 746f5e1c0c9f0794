// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/explain/difference.hpp"

#include "starpipe/plan/simulate/simulate.hpp"

namespace starpipe::plan {

Difference difference(const RecordedStep& step, const Costs& costs) {
  const JobTimes times = step.times(true);
  // The step's transfer times were taken with or without prefetch, whatever was predicted.
  Costs own = costs;
  own.prefetch = step.prefetch;
  Difference result;
  result.predicted = simulated_makespan(step.planned, costs);
  result.own_durations = simulated_makespan(step.planned, costs, step.times(false));
  result.own_transfers = simulated_makespan(step.planned, own, times);
  result.own_order = simulated_makespan(step.as_run, own, times);
  result.measured = step.timeline.makespan;
  return result;
}

}  // namespace starpipe::plan
