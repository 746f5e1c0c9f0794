// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "starpipe/plan/periodic/pattern.hpp"

namespace starpipe::plan {

/// By stage, the number of its group in 1F1B*(T): groups of stages that take at most T together, made
/// greedily from the last stage on, which is in group 1 (002, algorithm 1, phase 1). Throws InputError as
/// `busiest_worker_pattern`, or for a T that some stage alone exceeds. O(stages).
std::vector<int> stage_groups(std::span<const ChainStage> chain, double period);

/// 1F1B*(T) (002, algorithm 1): stages of a group run as an equal shift pattern, BW of group g from g - 1
/// periods after F. A stage of group g holds g stashes, and no 1-periodic pattern of period T holds fewer on
/// any stage (theorem 3). Throws as `stage_groups`.
PeriodicPattern one_forward_one_backward_star(std::span<const ChainStage> chain, double period);

/// The shortest period of any 1-periodic pattern that holds at most `limits[s]` stashes of stage s: the
/// smallest T for which 1F1B*(T) keeps them. It is what one of its groups takes, so there are finitely many
/// candidates; a bisection that skips to them ends in O(log(range)) rounds of O(stages). Throws InputError as
/// `stage_groups`, or for limits that are not one a stage and at least 1.
double least_period(std::span<const ChainStage> chain, std::span<const int> limits);

}  // namespace starpipe::plan
