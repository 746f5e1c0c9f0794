// SPDX-License-Identifier: Apache-2.0
#include "runtime/emulation/delay_line.hpp"

#include <chrono>
#include <memory>

#include "runtime/ranks/clock.hpp"
#include "starpipe/base/require.hpp"

namespace starpipe::runtime {

DelayLine::DelayLine(double delay)
    : delay_(delay), thread_([this](const std::stop_token& stop) { deliver(stop); }) {}

DelayLine::~DelayLine() {
  thread_.request_stop();
  thread_.join();
}

starpu_task* DelayLine::send(starpu_data_handle_t handle) {
  starpu_task* const task = starpu_task_create();
  task->cl = nullptr;
  task->destroy = 0;
  task->name = "arrival";
  starpu_task_end_dep_add(task, 1);
  require(starpu_task_submit(task), "StarPU", "inserting", "an emulated transfer");
  auto arrival = std::make_unique<Arrival>(Arrival{this, task, handle});
  require(starpu_data_acquire_cb(handle, STARPU_R, sent, arrival.get()), "StarPU", "reading",
          "a datum to send");
  static_cast<void>(arrival.release());  // `sent` takes it
  return task;
}

std::optional<double> DelayLine::oldest() const {
  const std::scoped_lock lock(mutex_);
  if (due_.empty()) return std::nullopt;
  return clock_seconds() - (due_.top().first - delay_);
}

void DelayLine::sent(void* argument) noexcept {
  const std::unique_ptr<const Arrival> arrival(static_cast<const Arrival*>(argument));
  DelayLine& line = *arrival->line;
  {
    const std::scoped_lock lock(line.mutex_);
    line.due_.emplace(clock_seconds() + line.delay_, arrival->task);
  }
  line.changed_.notify_one();
  starpu_data_release(arrival->handle);
}

void DelayLine::deliver(const std::stop_token& stop) {
  wake_on_time();
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    if (due_.empty()) {
      changed_.wait(lock, stop, [this] { return !due_.empty(); });
      continue;
    }
    const auto [time, task] = due_.top();
    const double left = time - clock_seconds();
    if (left > 0) {
      changed_.wait_for(lock, stop, std::chrono::duration<double>(left),
                        [this, time = time] { return due_.top().first < time; });
      continue;
    }
    due_.pop();
    lock.unlock();
    {
      const auto held = hold();
      starpu_task_end_dep_release(task);  // starts the tasks that depend on it
    }
    lock.lock();
  }
}

}  // namespace starpipe::runtime
