// SPDX-License-Identifier: Apache-2.0
#pragma once

// The order of the jobs in a run; private to plan.

#include <vector>

#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/timeline.hpp"

namespace starpipe::plan::detail {

/// For each worker, its jobs in the order in which they ran.
std::vector<std::vector<JobId>> run_order(const Schedule& schedule, const Timeline& timeline);

/// The earliest start of any job: 0 for most predicted timelines.
double first_start(const Schedule& schedule, const Timeline& timeline);

}  // namespace starpipe::plan::detail
