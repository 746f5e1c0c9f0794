// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/meter.hpp"

#include <algorithm>
#include <utility>

#include "starpipe/base/index.hpp"

namespace starpipe::runtime {
namespace {

// Returns the stages and micro-batches whose stash R makes: their F and R keep the inputs.
std::set<std::pair<int, int>> remade(const TaskGraph& graph) {
  std::set<std::pair<int, int>> pairs;
  for (const Task& task : graph.tasks()) {
    if (task.kind != TaskKind::R) continue;
    for (const DataAccess& access : task.data) {
      const Datum& datum = graph.data()[access.datum];
      if (datum.microbatch >= 0) pairs.emplace(task.stage, datum.microbatch);
    }
  }
  return pairs;
}

// True for the stash that L brings from the host or a disk: it reads none.
bool comes_from_host(const Task& task, const DataAccess& access, const TaskGraph& graph) {
  const auto is_stash = [&](const DataAccess& other) {
    return graph.data()[other.datum].kind == DataKind::stash;
  };
  return task.kind == TaskKind::L && is_stash(access) && std::ranges::count_if(task.data, is_stash) == 1;
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
    case DataKind::keys_values:
      return &transfers.keys_values;
    case DataKind::keys_values_gradient:
      return &transfers.keys_values_gradients;
    case DataKind::weights:
      return &transfers.weights;
    case DataKind::gradient_segment:
      return &transfers.weight_gradients;
    default:
      return nullptr;  // no other worker reads it
  }
}

}  // namespace

Meter::Meter(const TaskGraph& graph, int workers, const std::vector<bool>& local)
    : graph_(graph), remade_(remade(graph)), workers_(index(workers)) {
  for (std::size_t w = 0; w < workers_.size(); ++w) {
    if (local[w]) workers_[w] = std::make_unique<Worker>();
  }
  for (const Task& task : graph.tasks()) {
    if (!local[index(task.worker)]) continue;
    if (task.job) ++workers_[index(task.worker)]->placed_jobs;
    for (const DataAccess& access : task.data) {
      if (!keeps(task, access)) continue;
      Copy& copy = workers_[index(task.worker)]->copies[access.datum];
      if (access.access == Access::read) ++copy.readers;
    }
  }
  reset();
}

void Meter::reset() {
  for (std::size_t w = 0; w < workers_.size(); ++w) {
    if (!workers_[w]) continue;
    Worker& worker = *workers_[w];
    const std::scoped_lock lock(worker.mutex);
    worker.jobs.clear();
    worker.jobs.reserve(worker.placed_jobs);
    worker.record = {};
    worker.live = 0;
    worker.live_bytes = 0;
    worker.has.assign(graph_.data().size(), false);
    for (std::size_t d = 0; d < worker.has.size(); ++d) {
      const Datum& datum = graph_.data()[d];
      if (!is_temporary(datum.kind) && index(datum.worker) == w) worker.has[d] = true;
    }
    for (auto& [datum, copy] : worker.copies) copy = {.readers = copy.readers, .readers_left = copy.readers};
  }
}

bool Meter::keeps(const Task& task, const DataAccess& access) const {
  const Datum& datum = graph_.data()[access.datum];
  // O and L read stashes of other workers, where these count.
  if (datum.kind == DataKind::stash) return !is_stash_copy(task.kind) || datum.worker == task.worker;
  if (datum.kind == DataKind::gradient_stash || datum.kind == DataKind::keys_values ||
      datum.kind == DataKind::keys_values_gradient)
    return true;
  return datum.kind == DataKind::activation && access.access == Access::read &&
         remade_.contains({task.stage, datum.microbatch});
}

void Meter::hold(const Datum& datum, Copy& copy, Worker& worker) {
  copy.held = true;
  if (datum.kind == DataKind::stash) ++worker.live;
  worker.live_bytes += datum.bytes();
  WorkerRecord& record = worker.record;
  record.peak_stashes = std::max(record.peak_stashes, worker.live);
  record.peak_stash_bytes = std::max(record.peak_stash_bytes, worker.live_bytes);
}

void Meter::release(const Datum& datum, Copy& copy, Worker& worker) {
  copy.held = false;
  if (datum.kind == DataKind::stash) --worker.live;
  worker.live_bytes -= datum.bytes();
}

bool Meter::receive(const DataAccess& access, Worker& worker) const {
  if (worker.has[access.datum]) return false;
  worker.has[access.datum] = true;
  if (access.access == Access::write) return false;
  const Datum& datum = graph_.data()[access.datum];
  plan::Received* count = received(worker.record.received, datum.kind);
  if (count == nullptr) return false;
  ++count->count;
  count->bytes += datum.bytes();
  return true;
}

// Where a policy chooses the workers, a task may run on another worker than the one that the schedule names:
// data are received where the task runs, stashes count where the schedule puts them.
std::vector<std::size_t> Meter::start(const Task& task, int worker) {
  std::vector<std::size_t> received;
  {
    Worker& runs = *workers_[index(worker)];
    const std::scoped_lock lock(runs.mutex);
    for (const DataAccess& access : task.data) {
      if (receive(access, runs)) received.push_back(access.datum);
      if (!comes_from_host(task, access, graph_)) continue;
      ++runs.record.received.reloads.count;
      runs.record.received.reloads.bytes += graph_.data()[access.datum].bytes();
    }
  }
  Worker& named = *workers_[index(task.worker)];
  const std::scoped_lock lock(named.mutex);
  for (const DataAccess& access : task.data) {
    const auto copy = named.copies.find(access.datum);
    if (copy != named.copies.end() && keeps(task, access) && !copy->second.held)
      hold(graph_.data()[access.datum], copy->second, named);
  }
  return received;
}

void Meter::end(const Task& task, int worker, const TaskTimes& times) {
  if (task.job) {
    Worker& ran = *workers_[index(worker)];
    const std::scoped_lock lock(ran.mutex);
    ran.jobs.push_back({*task.job, worker, times.submitted, times.ready, times.start, times.end});
  }
  const bool sums = task.kind == TaskKind::add || task.kind == TaskKind::copy;
  Worker& named = *workers_[index(task.worker)];
  const std::scoped_lock lock(named.mutex);
  if (sums) named.record.last_sum = std::max(named.record.last_sum, times.end);
  for (const DataAccess& access : task.data) {
    const auto found = named.copies.find(access.datum);
    if (found == named.copies.end()) continue;
    Copy& copy = found->second;
    if (access.access == Access::read && keeps(task, access)) --copy.readers_left;
    if (copy.held && copy.readers_left == 0) release(graph_.data()[access.datum], copy, named);
  }
}

std::vector<JobRecord> Meter::take_jobs() {
  std::vector<JobRecord> all;
  std::size_t placed = 0;
  for (const auto& worker : workers_) placed += worker ? worker->placed_jobs : 0;
  all.reserve(placed);
  for (const auto& worker : workers_) {
    if (!worker) continue;
    std::vector<JobRecord> jobs;
    {
      const std::scoped_lock lock(worker->mutex);
      jobs.swap(worker->jobs);
    }
    all.insert(all.end(), jobs.begin(), jobs.end());
  }
  return all;
}

std::vector<WorkerRecord> Meter::workers() const {
  std::vector<WorkerRecord> all(workers_.size());
  for (std::size_t w = 0; w < workers_.size(); ++w) {
    if (!workers_[w]) continue;
    const std::scoped_lock lock(workers_[w]->mutex);
    all[w] = workers_[w]->record;
  }
  return all;
}

}  // namespace starpipe::runtime
