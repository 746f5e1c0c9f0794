// SPDX-License-Identifier: Apache-2.0
// Parts of `make_experiment`: what choosing a partition needs before there are stages, and what can be asked
// of other schedules than the configured one.
#pragma once

#include <optional>

#include "starpipe/model/network.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"
#include "starpipe/runtime/setup/config.hpp"

namespace starpipe::runtime {

/// Loads the plug-ins; S, as configured or the schedule's own. Throws InputError for an unknown schedule.
int stage_count(const Config& config);

/// The schedule, checked. Throws InputError for one that cannot finish.
plan::Schedule build_schedule(const Config& config, const plan::StageGraph& graph,
                              const std::optional<plan::Costs>& costs);

/// An experiment but for its data.
struct Plan {
  model::Network network;
  plan::Schedule schedule;      ///< as it runs
  plan::Discipline discipline;  ///< that was asked for
  plan::Costs costs;            ///< the emulated ones, or by FLOPs; with recomputation, F is in B
};

/// Throws InputError as `make_experiment` does, but for data and `runtime.memory_limit`.
Plan make_plan(const Config& config);

}  // namespace starpipe::runtime
