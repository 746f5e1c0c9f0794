// SPDX-License-Identifier: Apache-2.0
#include "plan/explain/compared_run.hpp"

#include "starpipe/plan/simulate/simulate.hpp"

namespace starpipe::plan {
namespace {

/// Returns the step's own times, for the planned workers. Where a job or its producer ran on another worker,
/// the planned transfer was not measured. Its predicted time counts.
JobTimes times_as_planned(const RecordedStep& step, const Costs& costs) {
  JobTimes times = step.times(true);
  // With one latency for all transfers no simulation is needed, and no rounding comes in.
  const bool one_time = costs.links.uniform() && !costs.links.has_bandwidths();
  std::optional<RecordedStep> predicted;
  const auto predicted_time = [&](JobId id) {
    if (one_time) return costs.link(0, 1).alpha;
    if (!predicted) predicted = simulated_step(step.planned, costs);
    return predicted->transfer[id];
  };
  const auto moved = [&](JobId id) { return step.as_run.compute(id) != step.planned.compute(id); };
  for (const JobId id : step.planned.order()) {
    bool as_planned = !moved(id);
    step.planned.for_each_pred(id, [&](JobId producer) { as_planned = as_planned && !moved(producer); });
    if (!as_planned) times.transfer[id] = predicted_time(id);
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
