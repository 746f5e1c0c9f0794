// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runtime/engine/task_graph.hpp"
#include "runtime/host/worker_map.hpp"
#include "starpipe/model/network.hpp"
#include "starpipe/plan/schedule/schedule.hpp"

namespace starpipe::runtime {

/// Returns the stage to name in a message: for parameters, the first stage that uses them.
int stage_to_name(const Datum& datum, const TaskGraph& graph);

/// Throws InputError, naming the stage and the datum, when a datum, or the scratch memory of a step, is too
/// large for StarPU (more than 2^32 - 1 words of 4 bytes), or when ranks exchange a datum that is too large
/// for one message (more than 2^31 - 1 bytes). StarPU and MPI would keep only the lower bits of such a size.
/// All ranks get the same answer.
void check_data_sizes(const TaskGraph& graph, const plan::Schedule& schedule, const model::Network& network,
                      const WorkerMap& map);

/// Checks the same for a run that evaluates with the schedule's forward passes and does not train.
void check_evaluation_sizes(const plan::Schedule& schedule, const model::Network& network,
                            const WorkerMap& map);

}  // namespace starpipe::runtime
