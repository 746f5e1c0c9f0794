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

FetchedCopies::FetchedCopies(const TaskGraph& graph, std::span<const int> nodes)
    : graph_(graph), nodes_(nodes.begin(), nodes.end()) {
  for (const Task& task : graph_.tasks()) {
    for (const DataAccess& access : task.data) {
      if (!is_fetched(access, task.worker)) continue;
      const Copy copy{access.datum, node(task.worker)};
      if (++readers_[copy] == 1 && graph_.data()[access.datum].kind == DataKind::weights)
        weights_.push_back(copy);
    }
  }
  reset();
}

bool FetchedCopies::is_fetched(const DataAccess& access, int worker) const {
  const Datum& datum = graph_.data()[access.datum];
  if (datum.kind == DataKind::verdict) return false;  // it stays in main memory
  return access.access == Access::read && !is_temporary(datum.kind) && node(worker) > main_memory &&
         node(datum.worker) >= main_memory && node(datum.worker) != node(worker);
}

void FetchedCopies::reset() {
  const std::scoped_lock lock(mutex_);
  left_ = readers_;
}

std::vector<std::size_t> FetchedCopies::unread_after(const Task& task) {
  std::vector<std::size_t> unread;
  if (readers_.empty()) return unread;
  const std::scoped_lock lock(mutex_);
  for (const DataAccess& access : task.data) {
    if (is_fetched(access, task.worker) && --left_[{access.datum, node(task.worker)}] == 0)
      unread.push_back(access.datum);
  }
  return unread;
}

}  // namespace starpipe::runtime
