// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include <starpu.h>

#include "plan/simulate/transfers_in_flight.hpp"
#include "runtime/engine/meter.hpp"
#include "runtime/engine/step_data.hpp"
#include "runtime/engine/task_graph.hpp"
#include "runtime/session/session.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"
#include "starpipe/plan/simulate/links.hpp"
#include "starpipe/plan/simulate/timeline.hpp"

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

  /// Returns an arrival, at worker `to`, of the value that `handle` has on worker `from` after all tasks
  /// inserted so far. Call it just before a reader of that value is inserted. The task exists until `forget`.
  starpu_task* send(starpu_data_handle_t handle, int from, int to, std::uint64_t bytes);

  /// Call it for each arrival when all tasks that depend on it are inserted. StarPU frees the arrival when it
  /// has ended.
  static void forget(starpu_task* arrival) { starpu_task_set_destroy(arrival); }

  /// Returns the seconds since the oldest transfer under way has started; nullopt if there is none. Any
  /// thread may call it.
  [[nodiscard]] std::optional<double> oldest() const;

  /// Returns a lock: while it is held, no arrival ends. Hold it while a task is made to depend on arrivals:
  /// when an arrival ended at that very moment, some tasks never started (StarPU 1.4.10).
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

/// Owns the emulated devices and links that replace kernels and transfers (`runtime.emulate`). The thread
/// that submits the step calls `arrivals`, `hold` and `drop`, StarPU's workers call `run`.
///
/// Each StarPU worker has a device: a queue that runs its jobs sequentially, like a stream of an accelerator.
/// The worker's thread waits for a job's end. The time that StarPU needs after an end, to find that the next
/// jobs are ready, delays these jobs as on a real device. The time that the operating system needs to wake
/// the waiting thread does not: a real driver would poll on a core of its own.
class Emulation {
 public:
  /// `costs`: durations of jobs and links, in seconds. The references must outlive this. Links that
  /// transfers share need all transfers in one process, sent ahead: `check_shared_links`.
  Emulation(const plan::Costs& costs, const StepContext& step, const StepData& data);

  /// Runs a job on the emulated device of the calling worker: from `times.ready` on, when the device has
  /// ended the job before. Writes start and end. If the job's end is past when the calling thread gets here,
  /// the job ends now. `received`: the data that `worker`, on which the job runs,
  /// had to receive for it. Without links that send ahead, the device first fetches them sequentially;
  /// `times.ready` is then the end of the last. F of a pair returns when the time of the pair is over, and
  /// its partner at once. In `times` they share that time as plan::Costs::time says.
  void run(const Task& task, int worker, std::span<const std::size_t> received, TaskTimes& times);

  /// True if transfers overlap computing, or take no time.
  [[nodiscard]] bool sends_ahead() const { return links_ || !costs_.links.takes_time(); }

  /// Notes the time at which StarPU found a job ready. Any thread may call it.
  void note_ready(plan::JobId job, double time) {
    if (!ready_.empty()) ready_[job] = time;
  }

  /// Returns StarPU tasks without work that end when the inputs of `task` have arrived at its worker; none
  /// without links, and for tasks other than jobs and the steps of reductions. As in `plan::simulate`, each
  /// datum is sent once to each worker that reads it.
  /// Collective: the owner of an input and the rank of the worker call it.
  std::vector<starpu_task*> arrivals(const Task& task);

  /// Returns the seconds since the oldest transfer to this rank that is under way has started; nullopt if
  /// there is none. Any thread may call it.
  [[nodiscard]] std::optional<double> oldest_transfer() const {
    return links_ ? links_->oldest() : std::nullopt;
  }

  /// Hold it while a task that has arrivals is made to depend on them (see DelayLine::hold).
  std::unique_lock<std::mutex> hold() { return links_->hold(); }

  /// Frees the arrivals of a datum when they have ended. Call it after the insertion of this rank's last task
  /// of the step that touches the datum.
  void drop(std::size_t datum);

 private:
  const plan::Costs& costs_;
  StepContext step_;
  const StepData& data_;
  /// One of StarPU's workers. Only its own thread uses it.
  struct Device {
    double busy_until = 0;
    double own_part_until = 0;  // of F of a pair, which the device runs with its partner until `busy_until`
  };
  std::vector<Device> devices_;                               // by StarPU worker
  std::vector<std::atomic<double>> ready_;                    // by JobId, where the schedule has pairs
  std::optional<DelayLine> links_;                            // when transfers are sent ahead
  std::map<std::pair<std::size_t, int>, starpu_task*> sent_;  // arrivals in use, by datum and worker
};

}  // namespace starpipe::runtime
