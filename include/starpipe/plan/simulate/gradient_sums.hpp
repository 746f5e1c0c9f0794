// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"
#include "starpipe/plan/simulate/timeline.hpp"

namespace starpipe::plan {

/// Predicts when the weight gradients of all stages are summed, and the sums are on all holders of the
/// weights: the time from the first job's start, at least the makespan. `timeline`: a run of `schedule`, of
/// which only `spans` and `order` are read. Nothing where no gradient is summed over workers, and where
/// workers fetch what takes time only when they need it (Costs::prefetch).
///
/// A worker's contribution to the gradient of a stage, or of weights that stages share, is complete at the
/// end of the worker's last W of these stages. The steps are those of `reduction_plan`. A sum leaves when the
/// sender has added all that it receives for it, and takes the time of its bytes (`updated()`) on its link.
/// Transfers of sums delay each other on links that they share (TransfersInFlight). If several begin at one
/// time, that of the smallest stage goes first. Sums do not delay the transfers of jobs, nor these the sums.
/// An addition takes no time, but its worker runs one thing at a time: it waits for the end of the present
/// job.
///
/// O(stages * micro-batches + steps * log(jobs)).
std::optional<double> gradients_summed(const Schedule& schedule, const Costs& costs,
                                       const Timeline& timeline);

}  // namespace starpipe::plan
