// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "plan/schedules/pattern.hpp"

// 1F1B* of Pipelined Model Parallelism: stage s of a chain on worker s.

namespace starpipe::plan {

/// Returns the group number of each stage in 1F1B*(T) (Pipelined Model Parallelism, algorithm 1, phase 1).
/// Groups are consecutive stages that take at most T together. They are filled greedily from the last stage
/// on, which is in group 1. Throws InputError for an invalid chain, or for a T that some stage alone exceeds.
/// O(stages).
std::vector<int> stage_groups(std::span<const ChainStage> chain, double period);

/// 1F1B*(T) (Pipelined Model Parallelism, algorithm 1). The stages of a group run sequentially, and BW of
/// group g starts g - 1 periods after F. A stage of group g holds g stashes; no 1-periodic pattern of period
/// T holds fewer on any stage (theorem 3). Throws as `stage_groups`.
PeriodicPattern one_forward_one_backward_star(std::span<const ChainStage> chain, double period);

/// Returns the shortest period of any 1-periodic pattern that holds at most `limits[s]` stashes of stage s:
/// the smallest T for which 1F1B*(T) keeps the limits. This T is the total time of one of its groups, so
/// there are finitely many candidates; a bisection that jumps from candidate to candidate takes O(log(range))
/// rounds of O(stages). Throws InputError for an invalid chain, or unless there is one limit per stage, each
/// at least 1.
double min_period(std::span<const ChainStage> chain, std::span<const int> limits);

/// Returns a pattern in which the busiest worker never idles, for stage s on worker `workers[s]`, contiguous
/// or not. Memory is not limited; such shifts always exist (Pipelined Model Parallelism, theorem 1). Throws
/// InputError for a chain that takes no time, a time that is negative or not finite, a number of workers that
/// is not the number of stages, or a worker below 0.
PeriodicPattern busiest_worker_pattern(std::span<const ChainStage> chain, std::span<const int> workers);

}  // namespace starpipe::plan
