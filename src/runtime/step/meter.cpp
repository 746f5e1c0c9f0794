// SPDX-License-Identifier: Apache-2.0
#include "runtime/step/meter.hpp"

#include <algorithm>

#include "starpipe/base/index.hpp"

namespace starpipe::runtime {
namespace {

// Whether a datum is kept for backward passes, [datum]. Kept are stashes, gradient stashes, and with
// recomputation the activations that B reads.
std::vector<bool> kept(const TaskGraph& graph) {
  std::vector<bool> result(graph.data().size());
  for (const Task& task : graph.tasks()) {
    for (const DataAccess& access : task.data) {
      const DataKind kind = graph.data()[access.datum].kind;
      if (kind == DataKind::stash || kind == DataKind::gradient_stash ||
          (kind == DataKind::activation && task.kind != TaskKind::F)) {
        result[access.datum] = true;
      }
    }
  }
  return result;
}

plan::Received* received(plan::Transfers& transfers, DataKind kind) {
  switch (kind) {
    case DataKind::activation:
      return &transfers.activations;
    case DataKind::stash:
    case DataKind::gradient_stash:
      return &transfers.stashes;
    case DataKind::gradient:
      return &transfers.gradients;
    case DataKind::weights:
      return &transfers.weights;
    case DataKind::weight_gradient:
      return &transfers.weight_gradients;
    default:
      return nullptr;  // no other worker reads it
  }
}

}  // namespace

Meter::Meter(const TaskGraph& graph, int workers, const std::vector<bool>& local)
    : graph_(graph),
      workers_(index(workers)),
      live_(workers_.size()),
      live_bytes_(workers_.size()),
      on_(graph.data().size()),
      copies_(graph.data().size()) {
  const std::vector<bool> is_kept = kept(graph);
  for (const Task& task : graph.tasks()) {
    if (!local[index(task.worker)]) continue;
    for (const DataAccess& access : task.data) {
      if (!is_kept[access.datum] || !keeps(access)) continue;
      auto& copies = copies_[access.datum];
      auto copy = std::ranges::find(copies, task.worker, &Copy::worker);
      if (copy == copies.end()) copy = copies.insert(copy, Copy{task.worker, 0, 0});
      if (access.access == Access::read) ++copy->readers;
    }
  }
  reset();
}

void Meter::reset() {
  const std::scoped_lock lock(mutex_);
  jobs_.clear();
  std::ranges::fill(workers_, WorkerRecord{});
  std::ranges::fill(live_, 0);
  std::ranges::fill(live_bytes_, 0);
  for (std::size_t d = 0; d < on_.size(); ++d) {
    on_[d].clear();
    if (!is_temporary(graph_.data()[d].kind)) on_[d].push_back(graph_.data()[d].worker);
    for (Copy& copy : copies_[d]) {
      copy.readers_left = copy.readers;
      copy.held = false;
    }
  }
}

bool Meter::keeps(const DataAccess& access) const {
  return access.access == Access::read || graph_.data()[access.datum].kind != DataKind::activation;
}

void Meter::hold(std::size_t datum, Copy& copy) {
  const std::size_t w = index(copy.worker);
  copy.held = true;
  if (graph_.data()[datum].kind == DataKind::stash) ++live_[w];
  live_bytes_[w] += bytes(datum);
  workers_[w].peak_stashes = std::max(workers_[w].peak_stashes, live_[w]);
  workers_[w].peak_stash_bytes = std::max(workers_[w].peak_stash_bytes, live_bytes_[w]);
}

void Meter::release(std::size_t datum, Copy& copy) {
  const std::size_t w = index(copy.worker);
  copy.held = false;
  if (graph_.data()[datum].kind == DataKind::stash) --live_[w];
  live_bytes_[w] -= bytes(datum);
}

bool Meter::receive(const DataAccess& access, int worker) {
  auto& on = on_[access.datum];
  if (std::ranges::find(on, worker) != on.end()) return false;
  on.push_back(worker);
  if (access.access == Access::write) return false;
  plan::Received* count = received(workers_[index(worker)].received, graph_.data()[access.datum].kind);
  if (count == nullptr) return false;
  ++count->count;
  count->bytes += bytes(access.datum);
  return true;
}

int Meter::start(const Task& task, int worker) {
  const std::scoped_lock lock(mutex_);
  int count = 0;
  for (const DataAccess& access : task.data) {
    if (receive(access, worker)) ++count;
    if (!keeps(access)) continue;
    for (Copy& copy : copies_[access.datum]) {
      if (copy.worker == task.worker && !copy.held) hold(access.datum, copy);
    }
  }
  return count;
}

void Meter::end(const Task& task, int worker, double start_time, double end_time) {
  const std::scoped_lock lock(mutex_);
  if (task.job) jobs_.push_back({*task.job, worker, start_time, end_time});
  for (const DataAccess& access : task.data) {
    for (Copy& copy : copies_[access.datum]) {
      if (copy.worker != task.worker) continue;
      if (access.access == Access::read) --copy.readers_left;
      if (copy.held && copy.readers_left == 0) release(access.datum, copy);
    }
  }
}

}  // namespace starpipe::runtime
