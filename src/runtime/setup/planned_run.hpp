// SPDX-License-Identifier: Apache-2.0
// Network, schedule and costs of a configuration: `make_experiment` adds the data. Choosing a partition, and
// the advice on memory limits, plan runs of changed configurations.
#pragma once

#include <optional>
#include <string_view>

#include "starpipe/model/network.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"
#include "starpipe/plan/simulate/limited_schedule.hpp"
#include "starpipe/runtime/config/config.hpp"

namespace starpipe::runtime {

/// The number of stages S, as configured or as the named schedule has. Loads the plug-ins first. Throws
/// InputError for an unknown schedule.
int stage_count(const Config& config);

/// The named schedule under the configured discipline and memory limit. Throws InputError for a schedule that
/// cannot finish. `known`: costs without recomputation, for schedules that depend on durations. `expected`:
/// costs as `simulate` takes them, which tell the order of a greedy or bounded schedule; unit durations when
/// absent.
plan::LimitedSchedule build_schedule(const Config& config, const plan::StageGraph& graph,
                                     const std::optional<plan::Costs>& known = {},
                                     const plan::Costs& expected = {});

/// An experiment without its data.
struct PlannedRun {
  model::Network network;
  plan::Schedule schedule;      ///< as it runs
  plan::Discipline discipline;  ///< the schedule's discipline before `simulate` fixed its order
  std::optional<plan::Reordering> reordering;
  plan::Costs costs;  ///< emulated, or by FLOPs; with recomputation, B includes F
};

/// Throws InputError, beginning with the key, when a step or an evaluation would have too many jobs.
void refuse_many_jobs(std::string_view key, int stages, int microbatches);

/// Throws InputError as `make_experiment` does, but for data and `runtime.memory_limit`.
PlannedRun plan_run(const Config& config);

}  // namespace starpipe::runtime
