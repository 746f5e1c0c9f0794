// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine/data_use.hpp"
#include "runtime/engine/emulation.hpp"
#include "runtime/engine/step_data.hpp"
#include "runtime/engine/task_graph.hpp"
#include "runtime/engine/task_runner.hpp"
#include "runtime/session/session.hpp"
#include "starpipe/plan/schedule/schedule.hpp"

namespace starpipe::runtime {

/// Throws InputError when the user lets StarPU limit the submitted tasks (STARPU_LIMIT_MAX_SUBMITTED_TASKS or
/// STARPU_LIMIT_MIN_SUBMITTED_TASKS) of a run in which such a limit can stop the submission indefinitely: an
/// emulated run, or one whose workers choose among ready jobs.
void check_submission_limits(const plan::Schedule& schedule, bool emulated);

/// Returns the largest number of tasks that a rank has submitted and not finished: `runtime.window` if our
/// policy or `worker-order` runs an ordered schedule. Returns nullopt if the whole step must be submitted at
/// once, because the policy chooses among ready jobs and its choice would depend on the window.
std::optional<int> submission_window(const Session& session, const plan::Schedule& schedule, int window);

/// Inserts the tasks of a step into StarPU in the graph's order, within the submission window. After the
/// insertion of this rank's last task that touches a datum, asks StarPU to drop the datum once this task has
/// ended. Only the thread that runs the steps calls it.
class Submitter {
 public:
  /// `window`: of `submission_window`. When it is full, submission waits until half of it is left. It changes
  /// no result and no order, but a small window leaves workers idle. `emulation`: nullptr when kernels run.
  /// The references must outlive this.
  Submitter(const Session& session, const plan::Schedule& schedule, const TaskGraph& graph,
            const RankTasks& tasks, StepData& data, TaskRunner& runner, Emulation* emulation,
            std::optional<int> window);

  /// Returns when all tasks of this rank are inserted; they may still run.
  void submit_step();

 private:
  void insert(const Task& task);
  void wait_for_room() const;

  const Session& session_;
  const plan::Schedule& schedule_;
  const TaskGraph& graph_;
  const RankTasks& tasks_;
  StepData& data_;
  TaskRunner& runner_;
  Emulation* emulation_;
  std::optional<int> window_;  // nullopt: no limit
};

}  // namespace starpipe::runtime
