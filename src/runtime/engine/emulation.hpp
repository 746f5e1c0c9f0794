// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <starpu.h>

#include "runtime/engine/step_data.hpp"
#include "runtime/engine/delay_line.hpp"
#include "runtime/engine/emulated_devices.hpp"
#include "runtime/session/session.hpp"
#include "runtime/engine/meter.hpp"
#include "runtime/engine/task_graph.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::runtime {

/// Owns the emulated devices and links that replace kernels and transfers (`runtime.emulate`). The thread
/// that submits the step calls `arrivals`, `hold` and `drop`, StarPU's workers call `run`.
class Emulation {
 public:
  /// `costs`: durations of jobs and links, in seconds. The references must outlive this. Links that
  /// transfers share need all transfers in one process, sent ahead: `check_shared_links`.
  Emulation(const plan::Costs& costs, const Session& session, const plan::Schedule& schedule,
            const TaskGraph& graph, const StepData& data);

  /// Runs a job on the emulated device of the calling worker: from `times.ready` on, when the device has
  /// ended the job before. Writes start and end. `received`: the data that `worker`, on which the job runs,
  /// had to receive for it. Without links that send ahead, the device first fetches them, one after the
  /// other; `times.ready` is then the end of the last.
  void run(const Task& task, int worker, std::span<const std::size_t> received, TaskTimes& times);

  /// Whether transfers overlap computing, or take no time.
  [[nodiscard]] bool sends_ahead() const { return links_ || !costs_.links.takes_time(); }

  /// Empty tasks that end when the inputs of `task` have arrived at its worker; empty without links, and for
  /// tasks other than jobs and the steps of reductions. As in `plan::simulate`, each datum is sent once to
  /// each worker that reads it, and sums of gradients delay no other transfers. Collective: the owner of an
  /// input and the rank of the worker call it.
  std::vector<starpu_task*> arrivals(const Task& task);

  /// Seconds since the oldest transfer to this rank that is under way has started; nothing when there is
  /// none. Any thread may call it.
  [[nodiscard]] std::optional<double> oldest_transfer() const {
    return links_ ? std::max(links_->oldest(), sums_->oldest()) : std::nullopt;
  }

  /// Hold it while `task`, which has arrivals, is made to depend on them (see DelayLine::hold).
  std::unique_lock<std::mutex> hold(const Task& task);

  /// Frees the arrivals of a datum when they have ended. Call it after the insertion of this rank's last task
  /// of the step that touches the datum.
  void drop(std::size_t datum);

 private:
  [[nodiscard]] std::uint64_t bytes_of(std::size_t datum) const;
  /// The links that bring the inputs of `task` from other workers; nullptr when they take no time.
  DelayLine* line_of(const Task& task);

  const plan::Costs& costs_;
  const Session& session_;
  const plan::Schedule& schedule_;
  const TaskGraph& graph_;
  const StepData& data_;
  EmulatedDevices devices_;
  std::optional<DelayLine> links_;  // when transfers are sent ahead
  std::optional<DelayLine> sums_;  // then too: of sums of gradients, which share no link with other transfers
  std::map<std::pair<std::size_t, int>, starpu_task*> sent_;  // arrivals in use, by datum and worker
};

}  // namespace starpipe::runtime
