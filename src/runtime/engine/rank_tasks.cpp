// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/rank_tasks.hpp"

#include <algorithm>

#include "starpipe/base/index.hpp"

namespace starpipe::runtime {

RankTasks tasks_of_rank(const TaskGraph& graph, const std::vector<bool>& local) {
  RankTasks mine;
  mine.last_use.assign(graph.data().size(), RankTasks::unused);
  const auto owns_input = [&](const DataAccess& access) {
    return access.access == Access::read && local[index(graph.data()[access.datum].worker)];
  };
  for (const Task& task : graph.tasks()) {
    if (!local[index(task.worker)] && std::ranges::none_of(task.data, owns_input)) continue;
    const auto next = static_cast<std::uint32_t>(mine.tasks.size());
    for (const DataAccess& access : task.data) mine.last_use[access.datum] = next;
    mine.tasks.push_back(static_cast<std::uint32_t>(graph.number_of(task)));
  }
  mine.tasks.shrink_to_fit();
  return mine;
}

}  // namespace starpipe::runtime
