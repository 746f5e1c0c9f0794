// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runtime/ranks/worker_map.hpp"
#include "runtime/step/task_graph.hpp"

namespace starpipe::runtime {

/// Throws InputError, naming the stage and the datum, when a datum or the scratch memory of a step is larger
/// than StarPU can register (2^32 - 1 words of 4 bytes), or one that ranks send each other larger than a
/// message (2^31 - 1 bytes). StarPU and MPI would cut off the upper bits of the size. All ranks get the same
/// answer.
void check_data_sizes(const TaskGraph& graph, const plan::Schedule& schedule, const model::Network& network,
                      const WorkerMap& map);

}  // namespace starpipe::runtime
