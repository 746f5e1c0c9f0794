// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "starpipe/plan/schedule/schedule.hpp"

namespace starpipe::plan {

/// `PartitionRequest::stashes` of a schedule: the peak number of stashes of each stage, from the last stage
/// to the first, in a run in which F, B and W all take 1. For 1F1B this is 1, 2, ... up to its number of
/// micro-batches. Exact for ordered schedules under any costs. Throws InputError when the schedule cannot
/// finish. O(jobs log jobs).
std::vector<int> stashes_held(const Schedule& schedule);

/// The worker that computes each stage; nothing if several workers compute some stage.
std::optional<std::vector<int>> stage_workers_of(const Schedule& schedule);

}  // namespace starpipe::plan
