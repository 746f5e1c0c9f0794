// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runtime/setup/planned_run.hpp"
#include "starpipe/runtime/setup/config.hpp"

namespace starpipe::runtime {

/// `runtime.memory_limit`, if there is one. Throws InputError when a worker needs more: one line that names
/// it, its need, and what would fit of recomputation and the other named schedules, the fastest of them by
/// `simulate`.
void require_memory(const Config& config, const Plan& plan);

}  // namespace starpipe::runtime
