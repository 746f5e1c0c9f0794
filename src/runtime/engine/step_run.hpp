// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/weights.hpp"
#include "runtime/engine/data_use.hpp"
#include "runtime/engine/emulation.hpp"
#include "runtime/engine/finite_check.hpp"
#include "runtime/engine/gathering.hpp"
#include "runtime/engine/meter.hpp"
#include "runtime/engine/relays.hpp"
#include "runtime/engine/stash_file.hpp"
#include "runtime/engine/step_data.hpp"
#include "runtime/engine/task_graph.hpp"
#include "runtime/engine/task_runner.hpp"
#include "runtime/engine/watchdog.hpp"
#include "runtime/host/worker_map.hpp"
#include "runtime/session/policy_choice.hpp"
#include "runtime/session/session.hpp"
#include "starpipe/model/dataset.hpp"
#include "starpipe/model/network.hpp"
#include "starpipe/model/optimizer.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"
#include "starpipe/runtime/config/config.hpp"

namespace starpipe::runtime {

/// Throws InputError when the user lets StarPU limit the submitted tasks (STARPU_LIMIT_MAX_SUBMITTED_TASKS or
/// STARPU_LIMIT_MIN_SUBMITTED_TASKS) of a run in which such a limit can stop the submission indefinitely: an
/// emulated run, or one whose workers choose among ready jobs.
void check_submission_limits(const plan::Schedule& schedule, bool emulated);

/// Throws InputError if a run on so many ranks cannot copy stashes to the homes of the schedule, or cannot do
/// so with this policy.
void check_homes(const plan::Schedule& schedule, const RuntimeConfig& config, int ranks);
/// Throws InputError, naming schedule.home, if some stash has a home to which GPUs do not copy. `map`: the
/// ranks of the workers.
void check_homes_of_gpus(const plan::Schedule& schedule, const WorkerMap& map);
void check_homes(const plan::Schedule& schedule, const PolicyChoice& policy);

/// The values that a StepRun is made of, besides its tasks. The references and pointers must outlive it.
struct StepSetup {
  const plan::Schedule& schedule;
  const model::Network& network;
  int window = 0;                                     ///< `runtime.window`
  std::filesystem::path stash_folder = {};            ///< `runtime.stash_folder`
  model::StartValues start = {};                      ///< see StepData
  const StepData* training = nullptr;                 ///< the data with the weights of an evaluation
  const model::OptimizerConfig* optimizer = nullptr;  ///< nullptr: an evaluation
  const plan::Costs* emulated = nullptr;              ///< see Engine
  bool finds_nonfinite = false;                       ///< passes search their results
};

/// The tasks of a training step, or of an evaluation, on this rank. Composes the parts that run these tasks,
/// and inserts them into StarPU in the graph's order, within the submission window. When the window is full,
/// submission waits until half of it is left. This changes no result and no order, but a small window leaves
/// workers idle. One thread calls the functions, which are collective unless they say otherwise.
class StepRun {
 public:
  StepRun(const Session& session, TaskGraph graph, const StepSetup& setup);
  StepRun(const StepRun&) = delete;
  StepRun& operator=(const StepRun&) = delete;

  struct Outcome {
    double seconds = 0;           ///< from the first submission to the last task, this rank's clock
    double submission = 0;        ///< the part of it in which this rank's tasks were inserted
    std::vector<JobRecord> jobs;  ///< of this rank, on its own clock
  };
  /// Runs all tasks once, on step `data_step` of the data; nullptr: kernels do not run. Throws RunFailure
  /// with status 2, on every rank, when some rank cannot read the data; its message begins with `name`.
  /// Afterwards the rank is still in the step, until `leave`: collective calls bring the results together.
  /// `number`: of the step, for the watchdog.
  Outcome run(const std::string& name, int number, int data_step, const model::Dataset* data);
  /// Not collective.
  void leave(int number) { progress_.enter(StepPhase::outside, number); }

  // The parts. Not collective.

  [[nodiscard]] const TaskGraph& graph() const { return graph_; }
  [[nodiscard]] StepData& data() { return data_; }
  [[nodiscard]] const Gathering& gathering() const { return gathering_; }
  [[nodiscard]] const Meter& meter() const { return meter_; }
  [[nodiscard]] const FiniteCheck& finite() const { return finite_; }
  [[nodiscard]] TaskRunner& runner() { return runner_; }
  [[nodiscard]] const Watched& watched() const { return watched_; }
  /// True if transfers overlap computing, as in plan::Costs.
  [[nodiscard]] bool sends_ahead() const { return !emulation_ || emulation_->sends_ahead(); }

 private:
  // For the watchdog.
  [[nodiscard]] RankStatus status() const;
  // Returns when all tasks of this rank are inserted; they may still run. After the insertion of the last
  // task that touches a datum, asks StarPU to drop the datum once this task has ended.
  void submit();
  void insert(const Task& task);
  // Inserts a task that ends when a datum has been sent, or used, and dropped that lies in the same memory as
  // this one. StarPU receives this datum after that.
  void wait_for(std::size_t datum, std::size_t previous) const;
  void wait_for_room() const;

  const Session& session_;
  const plan::Schedule& schedule_;
  TaskGraph graph_;
  RankTasks tasks_;
  ReceivedData received_;
  StepContext context_;
  Meter meter_;
  std::optional<int> window_;  // most tasks that this rank may have submitted and not finished; nullopt: all
  std::optional<int> ahead_;   // most tasks that it does have: fewer where ranks share few cores
  DataSlots slots_;
  StepData data_;
  std::unique_ptr<Relays> relays_;  // none where a holder sends to each rank that reads its weights
  Gathering gathering_;
  ExpectedTimes expected_;
  std::unique_ptr<Emulation> emulation_;  // none when kernels run, and on SimGrid
  FiniteCheck finite_;
  std::unique_ptr<StashFile> stashes_;  // none where no stash is copied to a disk
  TaskProgress progress_;
  Watched watched_;
  TaskRunner runner_;
};

}  // namespace starpipe::runtime
