// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::plan {

/// A stage of a finer graph is a part of a stage of a schedule. The T parts that compute side by side are
/// shards.
struct StagePart {
  int stage = 0;  ///< of the schedule
  int shard = 0;  ///< in [0, T); of a detached part any number from 0
  /// True if the part is placed and ordered on its own: a shard of the vocabulary, or the loss that joins
  /// such shards.
  bool detached = false;
};

/// Where detached parts run.
enum class ShardPlacement : std::uint8_t {
  all,   ///< shard k runs on worker k of all workers, counted round; the sink with its stage
  last,  ///< each with its stage, so that shards of the head are on the last stage's worker
};

/// The placements' words, in the order of the enum.
inline constexpr std::array<std::string_view, 2> shard_placement_words = {"all", "last"};

/// Returns the schedule with each stage replaced by its parts. `finer` is the stage graph of all parts, and
/// `parts` has an entry for each of its stages. Each worker becomes D = `workers_each` workers: if w(s, b, d)
/// is a worker v, the part with shard k runs on worker D v + k mod D, and likewise for weights. Jobs keep
/// their order n. The parts of one job run from the first to the last in F, and backwards in backward passes,
/// by their depth in `finer`.
///
/// Tensor parallelism is a schedule of this kind: w alone says that D workers share a stage (Unifying
/// Schemes, "Formal definitions of distributed schedules"). With D = 1 the parts of a stage run sequentially
/// on its worker.
///
/// Detached parts have the workers that `detached` says, or the workers of their stage's other parts. They
/// keep the turn of their stage's job: `with_detached_where_free` finds a better one. Sources and sink among
/// them have one backward pass, BW, whatever their stage has: nothing waits for W of a source, and a sink has
/// no weights.
///
/// Discipline and homes stay as in the schedule; with detached parts, R is late. Throws InputError unless the
/// schedule is ordered: a limit in stashes says nothing of parts. Throws std::logic_error when a part is of
/// no stage, or D is less than 1.
Schedule with_parts(const Schedule& schedule, const StageGraph& finer, std::span<const StagePart> parts,
                    int workers_each, ShardPlacement detached = ShardPlacement::all);

/// Returns the costs of a schedule's `stages`, whose parts have `costs`. A stage lasts as long as its parts
/// do on `workers_each` workers: parts at one depth of `finer` run side by side, so the worker with the
/// longest of them counts. Detached parts do not count. Sizes are of one part. Shared weights are left out.
Costs costs_of_whole_stages(const Costs& costs, const StageGraph& finer, std::span<const StagePart> parts,
                            int stages, int workers_each);

/// Cuts each stage of a chain into T shards, where no model defines the cut.
struct TensorCut {
  int shards = 1;        ///< T
  int workers_each = 1;  ///< D, the workers that each worker becomes, see `with_parts`; at most T
};

/// A schedule of shards, and their costs.
struct TensorFold {
  Schedule schedule;
  Costs costs;
};

/// Returns the T-fold of a schedule of a chain. Each stage becomes T shards, and each of them adds the
/// outputs of all shards of the stage before. A further stage adds the outputs of the last shards and takes
/// no time: it stands for the loss. It runs with shard 0 of the last stage.
///
/// `costs`: of the stages, as `simulate` takes them. A shard has 1/T of a stage's times, stashes and weights;
/// bytes are rounded up. Its output is as large as the stage's, and so is the gradient of it. With T = 1
/// schedule and costs stay as they are.
///
/// A schedule that is not ordered gets the order of its simulated run. Throws InputError unless the graph is
/// a chain without shared weights, and unless D is from 1 to T.
TensorFold tensor_fold(const Schedule& schedule, const Costs& costs, TensorCut cut);

}  // namespace starpipe::plan
