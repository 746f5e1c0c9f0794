// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/explain/difference.hpp"

#include "starpipe/plan/simulate/simulate.hpp"

namespace starpipe::plan {

Difference difference(const RecordedStep& step, const Costs& costs) {
  const JobTimes times = step.times(true);
  // The step's transfer times were taken with or without prefetch, whatever was predicted.
  Costs own = costs;
  own.prefetch = step.prefetch;
  // One statement for each: a timeline of many jobs is large, and goes before the next one comes.
  Difference result;
  result.predicted = simulate(step.planned, costs).makespan;
  result.own_durations = simulate(step.planned, costs, step.times(false)).makespan;
  result.own_transfers = simulate(step.planned, own, times).makespan;
  result.own_order = simulate(step.as_run, own, times).makespan;
  result.measured = step.timeline.makespan;
  return result;
}

}  // namespace starpipe::plan
