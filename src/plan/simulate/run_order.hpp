// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the readers and writers of schedules share; private to plan.

#include <vector>

#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/timeline.hpp"

namespace starpipe::plan::detail {

/// Per worker, its jobs in the order they ran.
std::vector<std::vector<JobId>> run_order(const Schedule& schedule, const Timeline& timeline);

/// The first start of any job; 0 for a predicted timeline.
double first_start(const Schedule& schedule, const Timeline& timeline);

}  // namespace starpipe::plan::detail
