// SPDX-License-Identifier: Apache-2.0
#include "runtime/step/rank_tasks.hpp"

#include <algorithm>

#include "starpipe/base/index.hpp"

namespace starpipe::runtime {

RankTasks tasks_of_rank(const TaskGraph& graph, const std::vector<bool>& local) {
  RankTasks mine;
  mine.last_use.assign(graph.data().size(), RankTasks::unused);
  const auto owns_input = [&](const DataAccess& access) {
    return access.access == Access::read && local[index(graph.data()[access.datum].worker)];
  };
  for (std::size_t t = 0; t < graph.tasks().size(); ++t) {
    const Task& task = graph.tasks()[t];
    if (!local[index(task.worker)] && std::ranges::none_of(task.data, owns_input)) continue;
    for (const DataAccess& access : task.data) mine.last_use[access.datum] = mine.tasks.size();
    mine.tasks.push_back(t);
  }
  return mine;
}

}  // namespace starpipe::runtime
