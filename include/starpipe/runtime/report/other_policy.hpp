// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "starpipe/runtime/setup/config.hpp"

namespace starpipe::runtime {

/// When the run's policy need not follow the schedule's placement and order: a line, with its newline, that a
/// prediction is not of this policy. Empty for `starpipe` and `worker-order`, which follow both. Throws
/// InputError for a policy that is unknown, in `runtime.policy` or STARPU_SCHED.
std::string describe_other_policy(const Config& config);

}  // namespace starpipe::runtime
