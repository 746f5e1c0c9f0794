// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "starpipe/plan/schedule/stage_graph.hpp"
#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::plan {

/// Where W passes go (Zero Bubble Pipeline Parallelism, arXiv 2401.10241, section 3.1). `passes` are the F
/// and B of a schedule, none before one that it waits for; each worker keeps their order. W runs, the longest
/// waiting first, in the time that a worker would otherwise wait and where its memory is full: no worker
/// holds more than `limit` stashes, if that can be. Whether W may also run where it delays the next pass a
/// little is tried in several ways; the rows with the shortest device span are returned, then those with
/// the shortest makespan. O(jobs). Not for `costs.prefetch == false`.
std::vector<std::vector<Job>> with_weight_gradients(
    std::span<const Job> passes, const StageGraph& graph, int workers, int microbatches,
    const std::function<int(int stage, int microbatch)>& worker, int limit, const Costs& costs);

}  // namespace starpipe::plan
