// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "starpipe/runtime/config/config.hpp"

namespace starpipe::runtime {

/// Only in starpipe-simulated.so, which runs on SimGrid. Runs `steps` steps of the configuration, with this
/// rank's workers on its simulated GPUs. Jobs last as `runtime.emulate` says. Collective. Returns the last
/// step's jobs and workers on rank 0, null on the others.
nlohmann::json run_simulated_rank(const Config& config, int steps);

}  // namespace starpipe::runtime
