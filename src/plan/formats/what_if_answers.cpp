// SPDX-License-Identifier: Apache-2.0
#include "plan/formats/what_if_answers.hpp"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "starpipe/base/error.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/search/unit_costs.hpp"
#include "starpipe/plan/simulate/limited_schedule.hpp"

namespace starpipe::plan {
namespace {

/// Returns the costs of the run, for schedules that choose their order by durations. A fused backward pass is
/// divided by the work of B and W.
Costs divided_costs(const ComparedRun& run) {
  Costs costs = run.costs;
  for (std::size_t s = 0; s < costs.durations.size(); ++s)
    divide_backward(costs.durations[s], run.work[run.work.size() == 1 ? 0 : s / index(costs.slices)]);
  return costs;
}

/// Returns the worker of each stage, or an empty vector if jobs or weights of a stage are on several workers.
std::vector<int> planned_stage_workers(const Schedule& planned) {
  const bool at_home = std::ranges::all_of(
      planned.order(), [&](JobId id) { return planned.placement(id).weights == planned.compute(id); });
  return at_home ? stage_workers_of(planned).value_or(std::vector<int>{}) : std::vector<int>{};
}

/// Returns the schedule with the groups and the placement of `request`. A schedule that refuses one of them,
/// since it has no groups for so many stages or a placement of its own, is made without it.
LimitedSchedule make_for_run(const std::string& name, ScheduleRequest request, const OrderRequest& order,
                             const Costs& costs) {
  while (true) {
    try {
      return make_limited_schedule(name, request, order, costs);
    } catch (const RequestError& error) {
      const std::string_view problem = error.what();
      if (problem.starts_with("placement: ") && !request.stage_workers.empty()) {
        request.stage_workers.clear();
      } else if (problem.starts_with("groups: ")) {
        if (!request.groups) throw InputError(fmt::format("{}, and the run has none", problem));
        request.groups.reset();
      } else if (problem.starts_with("stages: ") && request.groups) {
        request.groups.reset();  // a pipeline of a group would have fewer stages than the run
      } else {
        throw;
      }
    }
  }
}

// Returns the homes of the run's stashes, for another schedule.
std::vector<Home> homes_of_stages(const WhatIf& change, const Schedule& planned) {
  std::vector<Home> homes;
  if (!planned.recomputes() && !planned.copies()) return homes;
  for (int s = 0; s < planned.stages(); ++s) {
    homes.push_back(planned.home(s, 0));
    for (int b = 1; b < planned.microbatches(); ++b) {
      if (planned.home(s, b) != homes.back())
        throw InputError(
            fmt::format("what-if {}: the homes of stage {} differ by micro-batch", change.text, s));
    }
  }
  return homes;
}

Schedule named_schedule(const WhatIf& change, const ComparedRun& run, const std::vector<int>& memory_limits) {
  const Schedule& planned = run.measured.planned;
  const Costs costs = divided_costs(run);
  std::optional<int> stages;  // that the schedule has by itself
  try {
    const std::vector<Home> homes = homes_of_stages(change, planned);
    stages = default_stages(find_schedule(change.schedule), planned.workers(), {}, run.groups);
    LimitedSchedule made = make_for_run(change.schedule,
                                        {.workers = planned.workers(),
                                         .microbatches = planned.whole_microbatches(),
                                         .slices = planned.slices(),
                                         .graph = planned.graph(),
                                         .homes = homes,
                                         .costs = with_recomputation(costs, homes),
                                         .groups = run.groups,
                                         .stage_workers = planned_stage_workers(planned)},
                                        {.memory_limits = memory_limits}, costs);
    if (const CheckResult result = check(made.schedule); !result.ok()) throw InputError(result.problem);
    return std::move(made.schedule);
  } catch (const InputError& error) {
    if (stages.value_or(planned.stages()) == planned.stages())
      throw InputError(fmt::format("what-if {}: {}", change.text, error.what()));
    throw InputError(fmt::format("what-if {}: the schedule needs {} stages, the run measured {}", change.text,
                                 *stages, planned.stages()));
  }
}

Answer answer(const WhatIf& change, const ComparedRun& run) {
  if (change.target != WhatIf::Target::schedule)
    return {change.text, makespan_with(run.measured, change, run.work)};
  const std::span<const int> limits = run.measured.planned.memory_limits();
  std::vector<int> memory_limits(limits.begin(), limits.end());
  const Schedule other = named_schedule(change, run, memory_limits);
  return {change.text, makespan_under(run.measured, other, run.work, change.text),
          splits_fused_backward(run.measured, other), std::move(memory_limits)};
}

}  // namespace

std::vector<WhatIf> parse_what_ifs(std::span<const std::string> texts) {
  std::vector<WhatIf> changes;
  for (const std::string& text : texts) {
    if (std::ranges::count(changes, text, &WhatIf::text) > 0)
      throw InputError(fmt::format("what-if: {} is given twice", text));
    changes.push_back(parse_what_if(text));
  }
  return changes;
}

std::vector<Answer> answers(std::span<const WhatIf> changes, const ComparedRun& run) {
  std::vector<Answer> all;
  for (const WhatIf& change : changes) all.push_back(answer(change, run));
  std::ranges::stable_sort(all, {}, &Answer::makespan);
  return all;
}

}  // namespace starpipe::plan
