// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/emulation.hpp"

#include <starpu_mpi.h>

#include "starpipe/base/require.hpp"

namespace starpipe::runtime {

Emulation::Emulation(const plan::Costs& costs, const Session& session, const plan::Schedule& schedule,
                     const TaskGraph& graph, const StepData& data)
    : costs_(costs), session_(session), schedule_(schedule), graph_(graph), data_(data) {
  // Where a policy chooses the worker, nobody knows where to send a datum before its reader starts.
  if (costs.prefetch && costs.alpha > 0 && session.knows_workers()) links_.emplace(costs.alpha);
}

void Emulation::run(const Task& task, int received, TaskTimes& times) {
  const double fetching = links_ ? 0 : received * costs_.alpha;
  const double duration = costs_.duration(task.stage).of(schedule_.job(*task.job).pass);
  const auto [start, end] = devices_.run(times.ready, fetching + duration);
  times.start = start + fetching;
  times.end = end;
  if (fetching > 0) times.ready = times.start;
}

std::vector<starpu_task*> Emulation::arrivals(const Task& task) {
  std::vector<starpu_task*> tasks;
  if (!links_ || !task.job) return tasks;
  const int reader = session_.map().rank_of(task.worker);
  for (const DataAccess& access : task.data) {
    const Datum& datum = graph_.data()[access.datum];
    if (access.access != Access::read || datum.worker == task.worker) continue;
    if (datum.kind == DataKind::loss) continue;  // B waits for it and does not read it
    const starpu_data_handle_t handle = data_.handle(access.datum);
    if (data_.owner(datum) != reader) {
      require(starpu_mpi_get_data_on_node_detached(MPI_COMM_WORLD, handle, reader, nullptr, nullptr),
              "StarPU", "sending", "a datum");
    }
    if (reader != session_.mpi().rank()) continue;
    starpu_task*& arrival = sent_[{access.datum, task.worker}];
    if (arrival == nullptr) arrival = links_->send(handle);
    tasks.push_back(arrival);
  }
  return tasks;
}

std::unique_lock<std::mutex> Emulation::hold() {
  return links_ ? links_->hold() : std::unique_lock<std::mutex>();
}

void Emulation::drop(std::size_t datum) {
  const auto first = sent_.lower_bound({datum, 0});
  auto last = first;
  for (; last != sent_.end() && last->first.first == datum; ++last) DelayLine::forget(last->second);
  sent_.erase(first, last);
}

}  // namespace starpipe::runtime
