// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "starpipe/runtime/config/config.hpp"

namespace starpipe::runtime {

/// A line, with its newline, for a prediction: the configured policy does not follow the schedule's placement
/// and order, so its run may differ. Empty for `starpipe` and `worker-order`, which follow both. Throws
/// InputError for a policy that is unknown, in `runtime.policy` or STARPU_SCHED.
std::string describe_other_policy(const Config& config);

}  // namespace starpipe::runtime
