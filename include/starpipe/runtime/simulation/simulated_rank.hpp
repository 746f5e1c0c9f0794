// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "starpipe/plan/simulate/costs.hpp"
#include "starpipe/runtime/config/config.hpp"

namespace starpipe::runtime {

/// Only in starpipe-simulated.so, which runs on SimGrid. Runs `steps` steps of the configuration, with this
/// rank's workers on its simulated GPUs. `costs`: the durations of the jobs, in seconds. Collective. Returns
/// the last step's jobs and workers on rank 0, null on the others.
nlohmann::json run_simulated_rank(const Config& config, const plan::Costs& costs, int steps);

}  // namespace starpipe::runtime
