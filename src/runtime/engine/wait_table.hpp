// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

#include "runtime/host/worker_map.hpp"
#include "runtime/engine/task_graph.hpp"
#include "runtime/engine/rank_status.hpp"
#include "starpipe/plan/schedule/schedule.hpp"

namespace starpipe::runtime {

/// Who waits for whom in a step that makes no progress, a line for each rank: what the rank does, its next
/// task, the datum that this task misses, the rank that is to send the datum, and what that rank does.
/// The last line has no end of line. `news`: [rank].
std::string wait_table(const TaskGraph& graph, const plan::Schedule& schedule, const WorkerMap& map,
                       std::span<const RankNews> news, const NewsLimits& limits);

}  // namespace starpipe::runtime
