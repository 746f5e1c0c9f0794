// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <queue>
#include <thread>
#include <utility>
#include <vector>

#include <starpu.h>

namespace starpipe::runtime {

/// Emulated links between workers, each of which delivers a datum a fixed time after it was there to send.
/// Links share nothing: transfers do not slow one another, as in `plan::Costs`.
///
/// An arrival is an empty StarPU task that ends when the delay is over; what waits for the datum depends on
/// it, under any policy and without taking a worker.
class DelayLine {
 public:
  /// `delay` in seconds, at least 0.
  explicit DelayLine(double delay);
  ~DelayLine();
  DelayLine(const DelayLine&) = delete;
  DelayLine& operator=(const DelayLine&) = delete;

  /// The arrival of the value that the tasks inserted so far give to `handle`. Call it where such a reader
  /// would be inserted. The task stays the line's.
  starpu_task* send(starpu_data_handle_t handle);

  /// While held, no arrival ends. Hold it where a task is made to depend on arrivals: when one ended at that
  /// very moment, tasks were seen never to start (StarPU 1.4.10).
  [[nodiscard]] std::unique_lock<std::mutex> hold() { return std::unique_lock(ending_); }

  /// Frees the arrivals. Call it when all tasks have ended.
  void clear();

 private:
  using Time = double;  // clock_seconds()

  struct Arrival {
    DelayLine* line;
    starpu_task* task;
    starpu_data_handle_t handle;
  };

  static void sent(void* arrival);
  void deliver(const std::stop_token& stop);

  double delay_;
  std::deque<Arrival> arrivals_;  // StarPU holds their addresses
  std::mutex ending_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::priority_queue<std::pair<Time, starpu_task*>, std::vector<std::pair<Time, starpu_task*>>,
                      std::greater<>>
      due_;
  std::jthread thread_;  // last: it uses the rest
};

}  // namespace starpipe::runtime
