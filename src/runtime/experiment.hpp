// SPDX-License-Identifier: Apache-2.0
// Parts of `make_experiment` that choosing a partition needs before there are stages.
#pragma once

#include <optional>

#include "starpipe/runtime/config.hpp"

namespace starpipe::runtime {

/// Loads the plug-ins; S, as configured or the schedule's own. Throws InputError for an unknown schedule.
int stage_count(const Config& config);

/// The schedule, checked. Throws InputError for one that cannot finish.
plan::Schedule build_schedule(const Config& config, const plan::StageGraph& graph,
                              const std::optional<plan::Costs>& costs);

}  // namespace starpipe::runtime
