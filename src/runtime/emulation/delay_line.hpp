// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <queue>
#include <thread>
#include <utility>
#include <vector>

#include <starpu.h>

namespace starpipe::runtime {

/// Emulated links between workers. A link delivers a datum a fixed time after its value is ready to send.
/// Links share nothing: transfers do not slow one another, as in `plan::Costs`.
///
/// An arrival is an empty StarPU task that ends when the delay is over; the readers of the datum depend on
/// it. So links work under any policy, and take no worker. The thread that submits the step calls the member
/// functions; a thread of the line's own ends the arrivals. All arrivals must have ended before the line
/// does.
class DelayLine {
 public:
  /// `delay` in seconds, at least 0.
  explicit DelayLine(double delay);
  ~DelayLine();
  DelayLine(const DelayLine&) = delete;
  DelayLine& operator=(const DelayLine&) = delete;

  /// An arrival of the value that `handle` has after all tasks inserted so far. Call it just before a reader
  /// of that value is inserted. The task exists until `forget`.
  starpu_task* send(starpu_data_handle_t handle);

  /// Call it for each arrival when all tasks that depend on it are inserted. StarPU frees the arrival when it
  /// has ended.
  static void forget(starpu_task* arrival) { starpu_task_set_destroy(arrival); }

  /// Seconds since the oldest transfer under way has started; nothing when there is none. Any thread may call
  /// it.
  [[nodiscard]] std::optional<double> oldest() const;

  /// While the lock is held, no arrival ends. Hold it while a task is made to depend on arrivals: when an
  /// arrival ended at that very moment, some tasks never started (StarPU 1.4.10).
  [[nodiscard]] std::unique_lock<std::mutex> hold() { return std::unique_lock(ending_); }

 private:
  using Time = double;  // clock_seconds()

  struct Arrival {
    DelayLine* line;
    starpu_task* task;
    starpu_data_handle_t handle;
  };

  static void sent(void* arrival) noexcept;
  void deliver(const std::stop_token& stop);

  double delay_;
  std::mutex ending_;
  mutable std::mutex mutex_;  // of `due_`
  std::condition_variable_any changed_;
  std::priority_queue<std::pair<Time, starpu_task*>, std::vector<std::pair<Time, starpu_task*>>,
                      std::greater<>>
      due_;
  std::jthread thread_;  // last: it uses the other members
};

}  // namespace starpipe::runtime
