// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/delay_line.hpp"

#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/host/clock.hpp"
#include "starpipe/base/require.hpp"

namespace starpipe::runtime {

DelayLine::DelayLine(plan::Links links)
    : links_(std::move(links)),
      in_flight_(links_),
      thread_([this](const std::stop_token& stop) { deliver(stop); }) {}

DelayLine::~DelayLine() {
  thread_.request_stop();
  thread_.join();
}

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

}  // namespace starpipe::runtime
