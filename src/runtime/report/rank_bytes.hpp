// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "runtime/host/worker_map.hpp"
#include "runtime/engine/task_graph.hpp"

namespace starpipe::runtime {

/// Bytes that must cross between ranks in one step: each datum is sent once to each other rank that reads it.
std::uint64_t bytes_between_ranks(const TaskGraph& graph, const WorkerMap& map);

}  // namespace starpipe::runtime
