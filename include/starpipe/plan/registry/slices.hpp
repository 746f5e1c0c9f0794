// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::plan {

/// Returns a schedule of `microbatches` micro-batches that are cut into `slices` slices each. To the result a
/// slice is a micro-batch: slice k of micro-batch q has number q K + k. `made(n)` returns the schedule of n
/// micro-batches without slices.
///
/// Where w depends on stages alone, slices take the places of micro-batches: those of `made(n K)`. F runs in
/// the order of the slices, and backward passes in the opposite order within each micro-batch. The first
/// backward pass needs all slices of a micro-batch, so each worker runs its F passes d places earlier, K - 1
/// at least: as many as the schedule needs to finish. For 1F1B this is Seq1F1B (Sun et al., arXiv
/// 2406.03488). Where w depends on micro-batches (ddp, chimera), each job of `made(n)` becomes K jobs in a
/// row, on the same worker.
///
/// Tries several such orders, with the smallest d among them. Returns the shortest one with `costs`, the
/// costs of slices. `make_schedule` passes the costs of its request, or unit costs if it has none.
///
/// The result is ordered, unless each job becomes K jobs: then it has the discipline of `made(n)`. Throws
/// InputError for schedules with homes or memory limits, and where no d lets it finish.
Schedule with_slices(int microbatches, int slices, const std::function<Schedule(int)>& made,
                     const Costs& costs = {});

}  // namespace starpipe::plan
