// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/emulation.hpp"

#include <starpu_mpi.h>

#include "starpipe/base/require.hpp"

namespace starpipe::runtime {

Emulation::Emulation(const plan::Costs& costs, const Session& session, const plan::Schedule& schedule,
                     const TaskGraph& graph, const StepData& data)
    : costs_(costs), session_(session), schedule_(schedule), graph_(graph), data_(data) {
  // Where a policy chooses the worker, nobody knows where to send a datum before its reader starts.
  if (!costs.prefetch || !costs.links.takes_time() || !session.knows_workers()) return;
  links_.emplace(costs.links);
  sums_.emplace(costs.links);
}

std::uint64_t Emulation::bytes_of(std::size_t datum) const {
  return std::uint64_t{graph_.data()[datum].size} * sizeof(float);
}

void Emulation::run(const Task& task, int worker, std::span<const std::size_t> received, TaskTimes& times) {
  double fetching = 0;
  if (!links_) {
    // Where a policy chooses the workers, the datum may have been made elsewhere than on the planned worker.
    for (const std::size_t datum : received)
      fetching += costs_.link(graph_.data()[datum].worker, worker).time(bytes_of(datum));
  }
  const double duration = costs_.duration(task.stage).of(schedule_.job(*task.job).pass);
  const auto [start, end] = devices_.run(times.ready, fetching + duration);
  times.start = start + fetching;
  times.end = end;
  if (fetching > 0) times.ready = times.start;
}

std::vector<starpu_task*> Emulation::arrivals(const Task& task) {
  std::vector<starpu_task*> tasks;
  DelayLine* const line = line_of(task);
  if (line == nullptr) return tasks;
  const int reader = session_.map().rank_of(task.worker);
  for (const DataAccess& access : task.data) {
    const Datum& datum = graph_.data()[access.datum];
    if (access.access != Access::read || datum.worker == task.worker) continue;
    if (datum.kind == DataKind::loss) continue;  // B waits for it and does not read it
    if (costs_.link(datum.worker, task.worker).time(bytes_of(access.datum)) == 0) continue;
    const starpu_data_handle_t handle = data_.handle(access.datum);
    if (data_.owner(datum) != reader) {
      require(starpu_mpi_get_data_on_node_detached(MPI_COMM_WORLD, handle, reader, nullptr, nullptr),
              "StarPU", "sending", "a datum");
    }
    if (reader != session_.mpi().rank()) continue;
    starpu_task*& arrival = sent_[{access.datum, task.worker}];
    if (arrival == nullptr) arrival = line->send(handle, datum.worker, task.worker, bytes_of(access.datum));
    tasks.push_back(arrival);
  }
  return tasks;
}

DelayLine* Emulation::line_of(const Task& task) {
  const bool sums = task.kind == TaskKind::add || task.kind == TaskKind::copy;
  std::optional<DelayLine>& line = sums ? sums_ : links_;
  return line && (task.job || sums) ? &*line : nullptr;
}

std::unique_lock<std::mutex> Emulation::hold(const Task& task) { return line_of(task)->hold(); }

void Emulation::drop(std::size_t datum) {
  const auto first = sent_.lower_bound({datum, 0});
  auto last = first;
  for (; last != sent_.end() && last->first.first == datum; ++last) DelayLine::forget(last->second);
  sent_.erase(first, last);
}

}  // namespace starpipe::runtime
