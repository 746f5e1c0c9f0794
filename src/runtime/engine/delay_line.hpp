// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include <starpu.h>

#include "starpipe/plan/simulate/links.hpp"
#include "plan/simulate/transfers_in_flight.hpp"

namespace starpipe::runtime {

/// Emulated links between workers. The transfer of a datum begins when its value is ready, and takes the time
/// that the links give for its bytes. Transfers that share a link delay each other as in `plan::simulate`, by
/// the same class; all transfers on such a link must go through one line.
///
/// An arrival is an empty StarPU task that ends when the delay is over; the readers of the datum depend on
/// it. So links work under any policy, and take no worker. The thread that submits the step calls the member
/// functions; a thread of the line's own ends the arrivals. All arrivals must have ended before the line
/// does.
class DelayLine {
 public:
  /// `links`: with times in seconds.
  explicit DelayLine(plan::Links links);
  ~DelayLine();
  DelayLine(const DelayLine&) = delete;
  DelayLine& operator=(const DelayLine&) = delete;

  /// An arrival, at worker `to`, of the value that `handle` has on worker `from` after all tasks inserted so
  /// far. Call it just before a reader of that value is inserted. The task exists until `forget`.
  starpu_task* send(starpu_data_handle_t handle, int from, int to, std::uint64_t bytes);

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
  struct Arrival {
    DelayLine* line;
    starpu_task* task;
    starpu_data_handle_t handle;
    int from;
    int to;
    std::uint64_t bytes;
  };
  struct UnderWay {
    starpu_task* task;
    double since;  // clock_seconds()
  };

  static void sent(void* arrival) noexcept;
  void deliver(const std::stop_token& stop);

  plan::Links links_;
  std::mutex ending_;
  mutable std::mutex mutex_;  // of the members up to `thread_`
  std::condition_variable_any changed_;
  plan::TransfersInFlight in_flight_;
  std::map<std::uint32_t, UnderWay> under_way_;  // by number; in the order in which they began
  std::uint32_t begun_ = 0;
  std::jthread thread_;  // last: it uses the other members
};

}  // namespace starpipe::runtime
