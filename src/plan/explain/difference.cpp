// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/explain/difference.hpp"

#include "starpipe/plan/simulate/simulate.hpp"

namespace starpipe::plan {
namespace {

/// The step's own times, for the planned workers. Where a job or its producer ran on another worker, the
/// planned transfer was not measured. Its predicted time counts, which is the same for all sizes
/// (`StepCosts::costs`).
JobTimes times_as_planned(const RecordedStep& step, const Costs& costs) {
  JobTimes times = step.times(true);
  const auto moved = [&](JobId id) { return step.as_run.compute(id) != step.planned.compute(id); };
  for (const JobId id : step.planned.order()) {
    bool as_planned = !moved(id);
    step.planned.for_each_pred(id, [&](JobId producer) { as_planned = as_planned && !moved(producer); });
    if (!as_planned) times.transfer[id] = costs.alpha;
  }
  return times;
}

}  // namespace

Difference difference(const RecordedStep& step, const Costs& costs) {
  // The step's transfer times were taken with or without prefetch, whatever was predicted.
  Costs own = costs;
  own.prefetch = step.prefetch;
  Difference result;
  result.predicted = simulated_makespan(step.planned, costs);
  result.own_durations = simulated_makespan(step.planned, costs, step.times(false));
  result.own_transfers = simulated_makespan(step.planned, own, times_as_planned(step, costs));
  result.own_order = simulated_makespan(step.as_run, own, step.times(true));
  result.measured = step.timeline.makespan;
  return result;
}

}  // namespace starpipe::plan
