// SPDX-License-Identifier: Apache-2.0
// The library's door: a Runtime on the ranks of a communicator, a Trainer on it, and predictions without
// either. docs/library.md says what may be called when.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <mpi.h>

#include "starpipe/base/error.hpp"
#include "starpipe/model/safetensors.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"
#include "starpipe/plan/simulate/timeline.hpp"
#include "starpipe/plan/simulate/transfers.hpp"
#include "starpipe/runtime/config/config.hpp"

namespace starpipe {

namespace runtime {
class Mpi;
class StartedMpi;
class Training;
}  // namespace runtime

inline namespace v0 {

using plan::Pass;
using plan::Placement;
using plan::Schedule;
using runtime::Config;
using runtime::TrainerParts;

/// MPI in this process, for programs that do not start it themselves: MPI_Init_thread with
/// MPI_THREAD_MULTIPLE, then MPI_Finalize. Start and end it while no other thread uses the environment.
///
/// The end waits up to an hour for ranks that still work, and then 30 seconds for MPI_Finalize. After
/// that it leaves MPI as it is, and the program ends with its own exit status.
class MpiLibrary {
 public:
  /// Throws std::logic_error when MPI has started before, InputError when the shell's limits on the size or
  /// number of files, or on stacks, are too small, and std::runtime_error when MPI does not provide
  /// MPI_THREAD_MULTIPLE. When other ranks do not start MPI within five minutes, or a rank of this host has
  /// ended, calls `on_late` with one line and ends the job. When MPI does not end in time, calls `on_late`
  /// with one line on rank 0.
  explicit MpiLibrary(std::function<void(const std::string& line)> on_late = {});
  ~MpiLibrary();
  MpiLibrary(const MpiLibrary&) = delete;
  MpiLibrary& operator=(const MpiLibrary&) = delete;

 private:
  std::unique_ptr<runtime::StartedMpi> mpi_;
};

/// Functions that a Runtime calls to inform the program.
struct RuntimeOptions {
  /// Called on rank 0 with one line of advice or news: cores that workers share, a checkpoint that could not
  /// be written, where a run resumes. Called on the thread that calls the Runtime or its Trainer.
  std::function<void(const std::string& line)> on_message = {};
  /// Called on rank 0 with a few words when a part of the start or of the end begins that takes long with a
  /// large model. Called on the same thread.
  std::function<void(const std::string& words)> on_progress = {};
  /// Called on the rank that finds a fault of which the other ranks cannot learn, such as a lost rank; on any
  /// thread. When it returns, MPI_Abort ends the ranks of the communicator, as MPI's own error handler would.
  /// Unset: the reason is one line on standard error.
  std::function<void(const std::string& reason)> on_abort = {};
};

/// The ranks on which one model trains. It has duplicates of the communicator, so its messages never meet the
/// program's. MPI runs before and after it, with MPI_THREAD_MULTIPLE.
///
/// All functions of Runtime and Trainer are collective unless they say otherwise: every rank of the
/// communicator calls them in the same order, from one thread. An exception that they throw is thrown on
/// every rank. Where that is impossible they end the ranks of the communicator (RuntimeOptions::on_abort).
class Runtime {
 public:
  /// Throws std::logic_error when MPI does not run, when `comm` is MPI_COMM_NULL, or when this process has a
  /// Runtime already: StarPU exists once in a process. Several may follow each other. Throws InputError when
  /// a launcher has started several processes that MPI has not joined: each would be a run of its own.
  explicit Runtime(MPI_Comm comm = MPI_COMM_WORLD, RuntimeOptions options = {});
  /// Ends the ranks of the communicator if its Trainer has not ended before, or if an exception ends it that
  /// is not thrown on every rank.
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  /// Not collective.
  [[nodiscard]] int rank() const;
  /// Not collective.
  [[nodiscard]] int ranks() const;

  /// Throws InputError on every rank when some rank gives a problem: the problem of the lowest such rank. ""
  /// is none.
  void require_none(const std::string& problem) const;
  /// Runs `function` on every rank and returns its value, if it has one. When it throws InputError on some
  /// rank, throws the same InputError on every rank.
  template <class Function>
  auto agree(Function function) const {
    using Value = decltype(function());
    std::optional<std::conditional_t<std::is_void_v<Value>, bool, Value>> result;
    std::string problem;
    try {
      if constexpr (std::is_void_v<Value>)
        function();
      else
        result.emplace(function());
    } catch (const InputError& error) {
      problem = error.what();
    }
    require_none(problem);
    if constexpr (!std::is_void_v<Value>) return std::move(*result);
  }

  /// For starpipe's own sources.
  [[nodiscard]] const runtime::Mpi& mpi() const { return *mpi_; }

  /// Throws RunFailure; every rank calls it.
  [[noreturn]] void fail(const std::string& message, int status = 1) const;

 private:
  friend class Trainer;
  template <class Work>
  auto on_all_ranks(Work work) const;
  template <class Value>
  std::function<void(const Value&)> guarded(std::function<void(const Value&)> call) const;
  void end_if_alone() const;

  std::unique_ptr<runtime::Mpi> mpi_;
  int exceptions_;                          // under way when it was made
  mutable bool throws_everywhere_ = false;  // the exception under way is thrown on every rank
  bool has_trainer_ = false;
};

/// A worker's share of a step.
struct WorkerStep {
  plan::Transfers received;            ///< count and bytes, by kind of data
  int peak_stashes = 0;                ///< largest number of stashes that it held at a time
  std::uint64_t peak_stash_bytes = 0;  ///< largest number of bytes of these
};

/// A step that has ended.
struct Step {
  int number = 0;                       ///< from 0
  std::optional<double> loss;           ///< mean over the micro-batches; nullopt with emulated jobs
  std::vector<float> losses;            ///< [micro-batch]; empty with emulated jobs
  std::optional<double> gradient_norm;  ///< before clipping; nullopt with emulated jobs
  double learning_rate = 0;             ///< of the step's update
  bool clipped = false;                 ///< the update used a clipped gradient
  bool skipped = false;                 ///< the update was skipped for infinity or NaN
  double seconds = 0;               ///< from the first task's insertion to the last update, this rank's clock
  double submission = 0;            ///< the part of it in which this rank inserted its tasks
  std::vector<plan::JobRun> jobs;   ///< of all ranks, on rank 0's clock; on rank 0 only
  std::vector<WorkerStep> workers;  ///< [worker]; on rank 0 only
};

/// Forward passes on the validation data.
struct Evaluation {
  int steps = 0;              ///< trained before
  double loss = 0;            ///< mean of `losses`
  std::vector<float> losses;  ///< [micro-batch]
  double seconds = 0;         ///< this rank's clock
};

/// The size of a schedule of a chain of stages.
struct ScheduleSize {
  int stages = 1;
  int workers = 1;
  int microbatches = 1;
};

/// Returns the schedule of two functions, with passes F and BW. `w`(stage, micro-batch, pass) returns the
/// worker that holds the weights and computes, or a plan::Placement. `n`(stage, micro-batch, pass) returns
/// the priority; of the ready jobs of a worker, the job with the smallest n runs first.
template <class W, class N>
plan::Schedule make_schedule(const ScheduleSize& size, W w, N n,
                             plan::Discipline discipline = plan::Discipline::greedy) {
  plan::ScheduleSpec spec;
  spec.name = "own";
  spec.graph = plan::StageGraph::chain(size.stages);
  spec.workers = size.workers;
  spec.microbatches = size.microbatches;
  spec.discipline = discipline;
  spec.placement = [w](const plan::Job& job) {
    const auto place = w(job.stage, job.microbatch, job.pass);
    if constexpr (std::is_convertible_v<decltype(place), plan::Placement>)
      return place;
    else
      return plan::Placement{static_cast<int>(place), static_cast<int>(place)};
  };
  spec.priority = [n](const plan::Job& job) {
    return static_cast<std::int64_t>(n(job.stage, job.microbatch, job.pass));
  };
  return plan::Schedule(spec);
}

/// Trains one network under one schedule. StarPU starts with the first call of step, run, evaluate, save,
/// weights or save_weights, and ends with the Trainer.
class Trainer {
 public:
  /// Builds and checks the run: network, schedule, data, workers on ranks and devices. Throws InputError for
  /// what cannot work, and std::logic_error while `runtime` has another Trainer. `runtime` must outlive this.
  Trainer(Runtime& runtime, Config config, TrainerParts parts = {});
  /// Waits for the tasks of all ranks.
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Continues from the newest whole checkpoint in `checkpoint.folder`. Returns false if the folder has no
  /// checkpoint: training then begins with the first step. Throws InputError without a folder, when no
  /// checkpoint is whole, or when it is of another training; std::logic_error once StarPU has started.
  bool resume();

  /// Trains the next step. Throws std::logic_error after the last one, and RunFailure when a value is not
  /// finite (`training.nonfinite: stop`) or a rank cannot read its data. No step can follow a RunFailure.
  Step step();
  /// Trains the remaining steps, with the evaluations and checkpoints that the configuration asks for.
  /// Returns true if all steps are done, false if a signal has asked for the end (accept_signals). Throws as
  /// `step` does. A callback ends the run by an InputError or RunFailure on every rank (Runtime::agree,
  /// fail); any other exception of a callback ends the ranks of the communicator, if there are several.
  bool run();
  /// Runs the forward passes on the validation data. Throws InputError when there are no such data.
  Evaluation evaluate();

  /// Writes a checkpoint to `checkpoint.folder` and waits for it. Throws RunFailure when this fails.
  void save();
  /// Writes the weights as a safetensors file, or as several with an index. Each rank writes the parameters
  /// that it holds, unless the ranks do not share the folder: then rank 0 writes all. Throws RunFailure,
  /// after the weights are saved in fp32, when the format cannot hold one of them.
  void save_weights(const std::filesystem::path& file, const model::SaveFormat& format = {});
  /// Returns the weights by set of parameters (model::Network::sets) on rank 0; empty on the others.
  std::vector<std::vector<float>> weights();
  /// Returns the weight gradients of the last step, before clipping and averaged over the micro-batches, by
  /// set of parameters on rank 0; empty on the others. Throws std::logic_error before the first step.
  std::vector<std::vector<float>> gradients();
  /// Returns the report of the steps so far as JSON, predicted and measured, on rank 0, else "". Throws
  /// std::logic_error before the first step.
  std::string report();

  /// Sets a function that `run` calls after each step, on this rank. Not collective.
  void on_step(std::function<void(const Step&)> call);
  /// Sets a function that `run` calls after each evaluation, on this rank. Not collective.
  void on_evaluation(std::function<void(const Evaluation&)> call);
  /// `run` takes the signals that `checkpoint.on_signal` says, and SIGTERM, as requests for a checkpoint.
  /// Without this call no signal handler is installed.
  void accept_signals();

  // Not collective.

  /// Returns the number of steps done, those before a checkpoint included.
  [[nodiscard]] int steps_done() const;
  /// Returns the configuration of the run, with the cuts that `schedule.partition` chose.
  [[nodiscard]] const Config& config() const;
  [[nodiscard]] const model::Network& network() const;
  /// Returns the schedule that runs: a greedy or bounded one has its order fixed.
  [[nodiscard]] const plan::Schedule& schedule() const;

  /// For starpipe's own sources.
  [[nodiscard]] runtime::Training& training() const { return *training_; }

 private:
  template <class Result>
  Result call(Result (runtime::Training::*function)());

  Runtime& runtime_;
  std::unique_ptr<runtime::Training> training_;
};

/// A predicted step. Times are seconds with `runtime.emulate` or given durations; otherwise
/// an average pass of a stage lasts 1.
struct Prediction {
  plan::Schedule schedule;  ///< as it runs
  plan::Timeline timeline;  ///< with makespan, bubble_fraction, stashes and transfers by worker
  std::vector<std::uint64_t> memory_bytes = {};    ///< [worker]: need at its peak
  std::vector<std::uint64_t> received_bytes = {};  ///< [worker]
};

/// Predicts a step of the run by simulation, without MPI and StarPU. `durations`: of F, B and W by stage, or
/// one for all stages; empty: the durations of `runtime.emulate`, else by FLOPs. Not collective. Throws
/// InputError as the Trainer does for a network or schedule that cannot work.
Prediction predict(const Config& config, const TrainerParts& parts = {},
                   const std::vector<plan::Durations>& durations = {});

}  // namespace v0
}  // namespace starpipe
