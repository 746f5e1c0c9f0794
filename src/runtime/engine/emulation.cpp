// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/emulation.hpp"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include <starpu.h>
#include <starpu_mpi.h>

#include "runtime/host/clock.hpp"
#include "starpipe/base/error.hpp"

namespace starpipe::runtime {

DelayLine::DelayLine(plan::Links links)
    : links_(std::move(links)),
      in_flight_(links_),
      thread_([this](const std::stop_token& stop) { deliver(stop); }) {}

starpu_task* DelayLine::send(starpu_data_handle_t handle, int from, int to, std::uint64_t bytes) {
  starpu_task* const task = starpu_task_create();
  task->cl = nullptr;
  task->destroy = 0;
  task->name = "arrival";
  starpu_task_end_dep_add(task, 1);
  require(starpu_task_submit(task), "StarPU", "inserting", "an emulated transfer");
  auto arrival = std::make_unique<Arrival>(Arrival{this, task, handle, from, to, bytes});
  require(starpu_data_acquire_cb(handle, STARPU_R, sent, arrival.get()), "StarPU", "reading",
          "a datum to send");
  static_cast<void>(arrival.release());  // `sent` takes it
  return task;
}

std::optional<double> DelayLine::oldest() const {
  const std::scoped_lock lock(mutex_);
  if (under_way_.empty()) return std::nullopt;
  return clock_seconds() - under_way_.begin()->second.since;
}

void DelayLine::sent(void* argument) noexcept {
  const std::unique_ptr<const Arrival> arrival(static_cast<const Arrival*>(argument));
  DelayLine& line = *arrival->line;
  {
    const std::scoped_lock lock(line.mutex_);
    const double now = clock_seconds();
    line.under_way_[line.begun_] = {arrival->task, now};
    line.in_flight_.begin(now, arrival->from, arrival->to, arrival->bytes, line.begun_++);
  }
  line.changed_.notify_one();
  starpu_data_release(arrival->handle);
}

void DelayLine::deliver(const std::stop_token& stop) {
  wake_on_time();
  std::vector<std::uint32_t> arrived;
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    const double next = in_flight_.next();
    if (next == plan::TransfersInFlight::never) {
      changed_.wait(lock, stop, [this] { return in_flight_.next() < plan::TransfersInFlight::never; });
      continue;
    }
    const double now = clock_seconds();
    if (next > now) {
      changed_.wait_for(lock, stop, std::chrono::duration<double>(next - now),
                        [this, next] { return in_flight_.next() < next; });
      continue;
    }
    arrived.clear();
    in_flight_.advance(now, arrived);
    std::vector<starpu_task*> ended;
    for (const std::uint32_t number : arrived) ended.push_back(under_way_.extract(number).mapped().task);
    lock.unlock();
    for (starpu_task* const task : ended) {
      const auto held = hold();
      starpu_task_end_dep_release(task);  // starts the tasks that depend on it
    }
    lock.lock();
  }
}

Emulation::Emulation(const plan::Costs& costs, const StepContext& step, const StepData& data)
    : costs_(costs),
      step_(step),
      data_(data),
      devices_(starpu_worker_get_count()),
      ready_(step.schedule.has_pairs() ? step.schedule.id_count() : 0) {
  // If the policy chooses the worker, the target of a datum is not known before its reader starts.
  if (!costs.prefetch || !costs.links.takes_time() || !step.session.knows_workers()) return;
  links_.emplace(costs.links);
}

void Emulation::run(const Task& task, int worker, std::span<const std::size_t> received, TaskTimes& times) {
  double fetching = 0;
  if (!links_ && !is_stash_copy(task.kind)) {
    // Where a policy chooses the workers, the datum may have been made elsewhere than on the planned worker.
    for (const std::size_t number : received) {
      const Datum& datum = step_.graph.data()[number];
      fetching += costs_.link(datum.worker, worker).time(datum.bytes());
    }
  }
  const plan::Schedule& schedule = step_.schedule;
  const double duration = costs_.time(schedule, *task.job);
  Device& device = devices_[starpu_worker_get_id_check()];
  if (schedule.first_of_pair(*task.job) != *task.job) {
    times.start = device.own_part_until;
    times.end = device.busy_until;
    return;
  }
  const plan::JobId last = schedule.last_of_pair(*task.job);
  const double of_partner = last == *task.job ? 0 : costs_.time(schedule, last);
  wake_on_time();
  const double now = clock_seconds();
  const double partner_ready = last == *task.job ? 0 : ready_[last].load();
  times.start = std::max({device.busy_until, times.ready, partner_ready}) + fetching;
  wait_until(times.start + duration + of_partner);
  device.busy_until = std::max(now, times.start + duration + of_partner);
  times.end = device.own_part_until = device.busy_until - of_partner;
  if (fetching > 0) times.ready = times.start;
}

std::vector<starpu_task*> Emulation::arrivals(const Task& task) {
  std::vector<starpu_task*> tasks;
  const bool sums = task.kind == TaskKind::add || task.kind == TaskKind::copy;
  if (!links_ || (!task.job && !sums) || is_stash_copy(task.kind)) return tasks;
  const int reader = step_.session.map().rank_of(task.worker);
  for (const DataAccess& access : task.data) {
    const Datum& datum = step_.graph.data()[access.datum];
    if (access.access != Access::read || datum.worker == task.worker) continue;
    // The task waits for these and does not use them.
    if (datum.kind == DataKind::loss || datum.kind == DataKind::end_of_pass) continue;
    if (costs_.link(datum.worker, task.worker).time(datum.bytes()) == 0) continue;
    const starpu_data_handle_t handle = data_.handle(access.datum);
    if (data_.owner(datum) != reader) {
      require(starpu_mpi_get_data_on_node_detached(step_.session.mpi().starpu_comm(), handle, reader, nullptr,
                                                   nullptr),
              "StarPU", "sending", "a datum");
    }
    if (reader != step_.session.mpi().rank()) continue;
    starpu_task*& arrival = sent_[{access.datum, task.worker}];
    if (arrival == nullptr) arrival = links_->send(handle, datum.worker, task.worker, datum.bytes());
    tasks.push_back(arrival);
  }
  return tasks;
}

void Emulation::drop(std::size_t datum) {
  const auto first = sent_.lower_bound({datum, 0});
  auto last = first;
  for (; last != sent_.end() && last->first.first == datum; ++last) DelayLine::forget(last->second);
  sent_.erase(first, last);
}

}  // namespace starpipe::runtime
