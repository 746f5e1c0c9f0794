// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/explain/difference.hpp"

#include "starpipe/plan/simulate/simulate.hpp"

namespace starpipe::plan {

Difference difference(const RecordedStep& step, const Costs& costs) {
  const JobTimes times = step.times(true);
  // The step's transfer times were taken with or without prefetch, whatever was predicted.
  Costs own = costs;
  own.prefetch = step.prefetch;
  return {.predicted = simulate(step.planned, costs).makespan,
          .own_durations = simulate(step.planned, costs, step.times(false)).makespan,
          .own_transfers = simulate(step.planned, own, times).makespan,
          .own_order = simulate(step.as_run, own, times).makespan,
          .measured = step.timeline.makespan};
}

}  // namespace starpipe::plan
