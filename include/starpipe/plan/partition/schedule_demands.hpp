// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "starpipe/plan/schedule/schedule.hpp"

namespace starpipe::plan {

/// `PartitionRequest::stashes` of a schedule: the most stashes of each stage at once, in a run with unit
/// costs. 1F1B has 1, 2, ... up to its number of micro-batches. Exact for ordered schedules, whatever the
/// costs. Throws InputError when the schedule cannot finish. O(jobs log jobs).
std::vector<int> stashes_held(const Schedule& schedule);

/// The worker that computes each stage, when it is one for all jobs of the stage.
std::optional<std::vector<int>> stage_workers_of(const Schedule& schedule);

}  // namespace starpipe::plan
