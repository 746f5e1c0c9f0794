// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "plan/schedules/pattern.hpp"

namespace starpipe::plan {

/// A pattern in which the busiest worker never idles, for stage s on worker `workers[s]`, contiguous or not.
/// Memory is not limited; such shifts always exist (Pipelined Model Parallelism, theorem 1). Throws
/// InputError for a chain that takes no time, a time that is negative or not finite, a number of workers that
/// is not the number of stages, or a worker below 0.
PeriodicPattern busiest_worker_pattern(std::span<const ChainStage> chain, std::span<const int> workers);

}  // namespace starpipe::plan
