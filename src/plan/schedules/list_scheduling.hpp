// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "starpipe/plan/schedule/stage_graph.hpp"
#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::plan {

/// Adds the W passes to a schedule (Zero Bubble Pipeline Parallelism, arXiv 2401.10241, section 3.1). Returns
/// the jobs of each worker in order.
///
/// `passes` are F and B, each after all passes that it waits for; each worker keeps their order. W passes run
/// while a worker would otherwise wait, and when its memory is full; the W that waits longest goes first.
/// No worker holds more than `limit` stashes, where that is possible. Several rules are tried for running W
/// where it delays the next pass a little. The result has the shortest device span and, among equals, the
/// shortest makespan. O(jobs). Does not support `costs.prefetch == false`.
std::vector<std::vector<Job>> with_weight_gradients(
    std::span<const Job> passes, const StageGraph& graph, int workers, int microbatches,
    const std::function<int(int stage, int microbatch)>& worker, int limit, const Costs& costs);

}  // namespace starpipe::plan
