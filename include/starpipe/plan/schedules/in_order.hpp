// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "starpipe/plan/schedule/schedule.hpp"

namespace starpipe::plan {

/// The schedule in which worker w runs the jobs of `rows[w]` in that order, with the weights on the same
/// worker. `rows` has each job once, with either BW or both B and W for a stage and micro-batch. The
/// discipline is ordered.
Schedule in_order(std::string name, const StageGraph& graph, int microbatches,
                  std::span<const std::vector<Job>> rows);

}  // namespace starpipe::plan
