// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runtime/setup/planned_run.hpp"
#include "starpipe/runtime/config/config.hpp"

namespace starpipe::runtime {

/// Throws InputError when a worker needs more than `runtime.memory_limit`: one line that names the worker,
/// its need, and the recomputation or the fastest named schedule that would fit, by `simulate`.
void require_memory(const Config& config, const PlannedRun& run);

}  // namespace starpipe::runtime
