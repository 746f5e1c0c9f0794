// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "runtime/engine/task_graph.hpp"

namespace starpipe::runtime {

/// The tasks of a step that one rank inserts into StarPU, and the last of them that touches each datum.
struct RankTasks {
  static constexpr std::uint32_t unused = std::numeric_limits<std::uint32_t>::max();

  std::vector<std::uint32_t> tasks;     ///< indices into the graph's tasks, ascending
  std::vector<std::uint32_t> last_use;  ///< by datum: index into `tasks`, or `unused`
};

/// The tasks that a rank inserts: it runs them, or it owns one of their inputs. StarPU-MPI's own rule also
/// inserts tasks that write a datum of which the rank may hold a cached copy. Here no rank holds one: the
/// engine drops every copy after its last reader in the step, before the next write.
///
/// `local`: by logical worker, whether it belongs to the rank.
RankTasks tasks_of_rank(const TaskGraph& graph, const std::vector<bool>& local);

}  // namespace starpipe::runtime
