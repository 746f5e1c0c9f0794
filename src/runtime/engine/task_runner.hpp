// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <starpu.h>

#include "runtime/engine/emulation.hpp"
#include "runtime/engine/finite_check.hpp"
#include "runtime/engine/kernels.hpp"
#include "runtime/engine/meter.hpp"
#include "runtime/engine/stash_file.hpp"
#include "runtime/engine/step_data.hpp"
#include "runtime/engine/task_graph.hpp"
#include "runtime/engine/watchdog.hpp"
#include "runtime/session/session.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::runtime {

/// Owns the mean duration of each stage, slice and pass in the last step, for StarPU's policies that plan by
/// time (dmdas and its like) and for simulated GPUs. The thread that runs the steps calls `learn` when no
/// task runs; any thread may ask during a step.
class ExpectedTimes {
 public:
  /// `known`: the durations in seconds, if they are known; `learn` then does nothing. nullptr: unknown.
  /// `schedule` must outlive this.
  explicit ExpectedTimes(const plan::Schedule& schedule, const plan::Costs* known = nullptr);

  /// NaN when no such job has run yet.
  [[nodiscard]] double microseconds(plan::JobId job) const { return expected_[position(job)]; }
  /// `jobs`: of one step, on this rank. Stages and passes that are not among them keep their times.
  void learn(std::span<const JobRecord> jobs);

 private:
  [[nodiscard]] std::size_t position(plan::JobId job) const;

  const plan::Schedule& schedule_;
  bool is_known_;
  std::vector<double> expected_;  // microseconds, by stage, slice and pass
};

/// The parts of the engine that codelets call while a task runs.
struct StepParts {
  Meter& meter;
  StepData& data;
  const ExpectedTimes& expected;
  FiniteCheck& finite;
  TaskProgress& progress;
  StashFile* stashes;  ///< nullptr where no stash is copied to a disk
};

/// Owns the codelets that StarPU calls for the tasks of a step, the expected times that a policy may ask for,
/// and the argument of each task under way. StarPU's worker threads call the codelets; `begin_step` belongs
/// to the thread that runs the steps, while no task runs.
class TaskRunner {
 public:
  /// `emulation`: nullptr when kernels run. The references must outlive this, and this must outlive the
  /// tasks.
  TaskRunner(const Session& session, const KernelContext& context, const StepParts& parts,
             Emulation* emulation);

  /// `updates`: that the optimizer has done before.
  void begin_step(int updates, double learning_rate) {
    context_.updates = updates;
    context_.learning_rate = learning_rate;
    arrived_.clear();
  }

  /// Returns the codelet of a task of the graph.
  [[nodiscard]] starpu_codelet& codelet(const Task& task);
  /// The data of a task that codelets and callbacks get, from its insertion to its end.
  struct Argument;
  /// Makes the argument of a task that this rank runs and inserts now. StarPU owns it (STARPU_CL_ARGS) and
  /// frees it after the task. `name`: for traces and messages of StarPU.
  [[nodiscard]] Argument* new_argument(const Task& task, std::string_view name);
  /// The prologue callback of all tasks, which gets `argument`: StarPU calls it when all inputs of a task are
  /// there, before it asks the policy.
  static void note_ready(void* argument);
  /// The epilogue callback of tasks that may run on a GPU: StarPU calls it when the kernels have ended,
  /// before it releases the tasks that wait for this one. On SimGrid StarPU calls no codelet, and this notes
  /// the start, too.
  static void end_on_gpu(void* unused);
  /// The callback of O and L of stashes on GPUs, which gets `argument`: StarPU calls it when a copy worker
  /// takes the task, before it moves the stash.
  static void begin_move(void* argument);

 private:
  static double expected_microseconds(starpu_task* task, starpu_perfmodel_arch* device,
                                      unsigned implementation);
  static void run_on_cpu(void** buffers, void* argument) noexcept;
  static void run_on_gpu(void** buffers, void* argument) noexcept;
  static void note_start_on_gpu(Argument& starting);
  static void note_simulated_start(Argument& ended);
  static void end_move(Argument& ended);
  double weights_arrived(const Argument& reader);
  [[nodiscard]] std::vector<std::uint32_t> moved_stashes(const Task& task) const;
  [[nodiscard]] std::vector<int> nodes_of(const Task& task) const;
  void copy_stash(const Task& task, std::span<const model::Memory> data) const noexcept;
  [[nodiscard]] int calling_worker() const;

  const Session& session_;
  KernelContext context_;
  StepParts parts_;
  Emulation* emulation_;
  std::map<std::pair<std::size_t, int>, double> arrived_;  // on SimGrid: when weights came to a worker

  // A codelet that names the memory node of each datum of its tasks.
  struct NodesCodelet {
    std::vector<int> nodes;
    starpu_codelet codelet;
  };
  std::map<std::pair<TaskKind, std::vector<int>>, NodesCodelet> codelets_;  // where GPUs copy stashes
};

struct TaskRunner::Argument {
  TaskRunner* runner;
  const Task* task;
  TaskTimes times = {};            ///< on a GPU, `start` is when its kernels were enqueued
  int worker = -1;                 ///< the logical one that runs it, for end_on_gpu
  std::array<char, 28> name = {};  ///< ends with a zero; has room for the name of any job
};

}  // namespace starpipe::runtime
