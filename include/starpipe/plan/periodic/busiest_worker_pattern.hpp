// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "starpipe/plan/periodic/pattern.hpp"

namespace starpipe::plan {

/// A pattern without idle time on the busiest worker for any allocation: stage s on worker `workers[s]`,
/// contiguous or not. Memory is no concern (002, theorem 1: there always is such a choice of shifts). Throws
/// InputError for a chain that takes no time, a time that is negative or not finite, or a worker below 0.
PeriodicPattern busiest_worker_pattern(std::span<const ChainStage> chain, std::span<const int> workers);

}  // namespace starpipe::plan
