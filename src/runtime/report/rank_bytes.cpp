// SPDX-License-Identifier: Apache-2.0
#include "runtime/report/rank_bytes.hpp"

#include <cstddef>
#include <set>
#include <utility>

namespace starpipe::runtime {

std::uint64_t bytes_between_ranks(const TaskGraph& graph, const WorkerMap& map) {
  std::set<std::pair<std::size_t, int>> moves;
  for (const Task& task : graph.tasks()) {
    const int reader = map.rank_of(task.worker);
    for (const DataAccess& access : task.data) {
      if (access.access == Access::read && map.rank_of(graph.data()[access.datum].worker) != reader) {
        moves.emplace(access.datum, reader);
      }
    }
  }
  std::uint64_t bytes = 0;
  for (const auto& [datum, rank] : moves) bytes += graph.data()[datum].size * sizeof(float);
  return bytes;
}

}  // namespace starpipe::runtime
