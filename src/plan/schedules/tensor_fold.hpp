// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "plan/schedules/finer.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::plan {

/// How the stages of a chain are cut, where no model says it: each into T shards.
struct TensorCut {
  int shards = 1;        ///< T
  int workers_each = 1;  ///< D, the workers that each worker becomes, see `with_parts`; at most T
};

/// A schedule of shards, and their costs.
struct TensorFold {
  Schedule schedule;
  Costs costs;
};

/// The T-fold of a schedule of a chain. Each stage becomes T shards, and each of them adds the outputs of all
/// shards of the stage before. A further stage adds the outputs of the last shards and takes no time: it
/// stands for the loss. It runs with shard 0 of the last stage.
///
/// `costs` are those of the stages, as `simulate` takes them. A shard has 1/T of a stage's times, stashes and
/// weights; bytes are rounded up. Its output is as large as the stage's, and so is the gradient of it. With
/// T = 1 schedule and costs stay as they are.
///
/// A schedule that is not ordered gets the order of its simulated run. Throws InputError unless the graph is
/// a chain without shared weights, and unless D is from 1 to T.
TensorFold tensor_fold(const Schedule& schedule, const Costs& costs, TensorCut cut);

}  // namespace starpipe::plan
