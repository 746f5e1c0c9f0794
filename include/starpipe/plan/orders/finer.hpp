// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::plan {

/// A stage of a finer graph is a part of a stage of a schedule. The T parts that compute side by side are
/// shards.
struct StagePart {
  int stage = 0;  ///< of the schedule
  int shard = 0;  ///< in [0, T)
};

/// The schedule with each stage replaced by its parts. `finer` is the stage graph of all parts, and `parts`
/// has an entry for each of its stages. Each worker becomes D = `workers_each` workers: if w(s, b, d) is a
/// worker v, the part with shard k runs on worker D v + k mod D, and likewise for weights. Jobs keep their
/// order n. The parts of one job run from the first to the last in F, and backwards in backward passes, by
/// their depth in `finer`.
///
/// Tensor parallelism is a schedule of this kind: w alone says that D workers share a stage (Unifying
/// Schemes, "Formal definitions of distributed schedules"). With D = 1 the parts of a stage run on its worker
/// one after the other.
///
/// Discipline and recomputation are those of the schedule. Throws InputError unless the schedule is ordered:
/// a limit in stashes says nothing of parts. Throws std::logic_error when a part is of no stage, or D is less
/// than 1.
Schedule with_parts(const Schedule& schedule, const StageGraph& finer, std::span<const StagePart> parts,
                    int workers_each);

/// The costs of a schedule's `stages`, whose parts have `costs`. A stage lasts as long as its parts do on
/// `workers_each` workers: parts at one depth of `finer` run side by side, so the worker with the longest of
/// them counts. Sizes are those of one part, and nothing is said of shared weights.
Costs costs_of_whole_stages(const Costs& costs, const StageGraph& finer, std::span<const StagePart> parts,
                            int stages, int workers_each);

}  // namespace starpipe::plan
