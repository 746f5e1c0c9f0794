// SPDX-License-Identifier: Apache-2.0
// The report of a run: its steps, measured and predicted, and its GPUs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "plan/explain/compared_run.hpp"
#include "plan/explain/recorded_step.hpp"
#include "runtime/engine/engine.hpp"
#include "runtime/engine/finite_check.hpp"
#include "runtime/engine/memory_need.hpp"
#include "runtime/engine/task_graph.hpp"
#include "runtime/host/mpi.hpp"
#include "runtime/host/worker_map.hpp"
#include "runtime/session/gpu_memory.hpp"
#include "runtime/setup/experiment.hpp"
#include "runtime/setup/partition_choice.hpp"
#include "starpipe/model/dataset.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"
#include "starpipe/runtime/config/config.hpp"

namespace starpipe::runtime {

/// Collects the steps of a training run on rank 0. The first step warms up. The steps after it are compared
/// with the prediction, which uses their own durations unless the costs are known. Where their jobs are more
/// than `max_jobs`, only the last steps whose jobs are not are compared, and at least `fewest_steps`. A run
/// of one step is compared with this step.
class Measurement {
 public:
  /// Bounds the memory for records, and the time that the comparison takes at the end of the run.
  static constexpr std::size_t max_jobs = std::size_t{1} << 18U;
  static constexpr std::size_t fewest_steps = 3;

  /// `costs`: as `simulate` takes them. `known`: they need not be measured, as the costs of emulated jobs;
  /// else their sizes count, their durations by FLOPs, and their links where these take time. `schedule` must
  /// outlive this.
  Measurement(const plan::Schedule& schedule, plan::Costs costs, bool known = false);

  /// Call it before each step. Drops the records that the step's records will replace, so that both are not
  /// in memory together.
  void begin_step();
  void end_step(StepResult step);

  /// Call it after the last step, when at least one has ended. O(jobs log jobs) for each compared step.
  [[nodiscard]] plan::ComparedRun compared() const;
  /// Returns the makespans of all steps after the first, seconds.
  [[nodiscard]] const std::vector<double>& makespans() const { return makespans_; }
  /// Returns the transfers and peak memory of each worker in the last step.
  [[nodiscard]] const std::vector<WorkerRecord>& workers() const { return workers_; }

 private:
  const plan::Schedule& schedule_;
  plan::Costs costs_;
  bool known_;
  int steps_ = 0;
  bool prefetch_ = true;  // of the measured steps
  std::vector<double> makespans_;
  std::deque<std::vector<plan::JobRun>> kept_;  // the jobs of the last steps
  std::deque<double> summed_;                   // of these steps: Timeline::gradients_summed
  std::vector<WorkerRecord> workers_;
};

/// Returns the bytes that each worker needs at its peak: an array of objects with the parts by name.
nlohmann::ordered_json memory_json(const std::vector<DeviceNeed>& needs);

/// Returns the bytes over the step: an array of objects with the worker's `limit`, if there is one, and as
/// "time" and "bytes" the levels of the worker. Times are in the unit of the timeline.
nlohmann::ordered_json memory_over_time_json(const std::vector<DeviceNeed>& needs,
                                             const RuntimeConfig& config);

/// Returns a line, with its newline, that warns next to a prediction: the configured policy does not follow
/// the schedule's placement and order. Returns an empty string for `starpipe` and `worker-order`, which
/// follow both. Throws InputError for an unknown policy in `runtime.policy` or STARPU_SCHED.
std::string describe_other_policy(const Config& config);

/// Returns one line for people with the cuts, and how evenly they share the work. It ends in a newline.
std::string describe_cuts(const Config& config, const Experiment& experiment);

/// Returns one line that ends in a newline if the schedule is from a file and some worker computes much
/// longer than the mean of the workers, although it would not with equal stages, with which `search` and
/// `schedule` plan. Returns "" otherwise.
std::string describe_unequal_stages(const Config& config, const Experiment& experiment);

/// Returns the bytes that must cross between ranks in one step: each datum is sent once to each other rank
/// that reads it.
std::uint64_t bytes_between_ranks(const TaskGraph& graph, const WorkerMap& map);

/// How data moves between GPUs.
struct GpuCopies {
  std::uint64_t pairs = 0;         ///< ordered pairs of GPUs of the same rank, summed over ranks
  std::uint64_t peer_to_peer = 0;  ///< pairs that StarPU copies between directly
  /// Path of messages between GPUs of different ranks, in words; nullopt with one rank.
  std::optional<std::string> between_ranks;
};

/// Returns the path of messages between GPUs of different ranks, in words. `uses`: StarPU-MPI gives GPU
/// memory to MPI; nullopt if unknown. `mpi_can`: MPI accepts GPU memory. `disabled`: STARPU_MPI_GPUDIRECT=0
/// is set.
std::string path_between_ranks(std::optional<bool> uses, bool mpi_can, bool disabled);

/// Counts the pairs and finds the path. Collective, with StarPU running; complete on rank 0.
GpuCopies find_gpu_copies(const Mpi& mpi);

nlohmann::ordered_json to_json(const GpuCopies& copies);
/// Returns a line for copies within ranks and a line for copies between ranks, if there are any.
std::string to_text(const GpuCopies& copies);

// The memory of GPUs during a run, predicted and measured.

/// The memory of one GPU of one rank.
struct GpuUse {
  GpuMemory measured;
  std::vector<int> workers;     ///< logical workers on this GPU
  std::uint64_t predicted = 0;  ///< bytes that these workers need together, by memory_need()
};

/// Returns the GPU of each logical worker, as an index in `measured`. Workers on cores get the numbers after
/// the last GPU, one each.
std::vector<int> gpu_of_workers(std::span<const GpuMemory> measured, std::span<const RankLocation> locations);

/// Returns the predicted and measured memory of each GPU. `gpu_of_worker`: from gpu_of_workers(). `needs`:
/// the memory that each of these numbers needs.
std::vector<GpuUse> gpu_use(std::span<const GpuMemory> measured, std::span<const int> gpu_of_worker,
                            std::span<const DeviceNeed> needs);

nlohmann::ordered_json to_json(std::span<const GpuUse> gpus);
/// Returns a table with notes; empty without GPUs.
std::string to_text(std::span<const GpuUse> gpus);

/// The GPUs of a run.
struct GpuReport {
  std::vector<GpuUse> memory;
  GpuCopies copies;
};

/// A step whose update was skipped, and the first value of it that is not finite.
struct SkippedStep {
  int step;  ///< from 0
  NonFiniteOrigin first;
};

/// A checkpoint that a run has begun to write.
struct CheckpointPause {
  int step;        ///< steps done
  double seconds;  ///< in which the run did not train; of the slowest rank
};

/// The checkpoints of a run.
struct CheckpointSummary {
  std::vector<CheckpointPause> pauses;
  int failures = 0;          ///< number of checkpoints that could not be written
  std::string last_problem;  ///< the reason if the last one could not be written; else empty
};

/// An evaluation in a training run.
struct EvaluationRecord {
  int step;  ///< how many steps were trained before it
  double loss;
  int microbatches;
  double seconds;
};
/// Returns "evaluation  loss 4.1234 (8 micro-batches: the first 1024 of 5000 tokens)". `data`: that were
/// evaluated.
std::string evaluation_text(double loss, int microbatches, const model::Dataset& data);

/// The record of a training run, complete on rank 0.
struct TrainRecord {
  int first_step = 0;  ///< from 0; not 0 in a run that resumes. The lists below begin with it
  /// The mean loss over the micro-batches of each step, before its update. Empty with emulated jobs.
  std::vector<double> losses;
  std::vector<double> gradient_norms;  ///< of each step, before clipping; empty with emulated jobs
  std::vector<double> learning_rates;  ///< likewise
  std::vector<int> clipped;            ///< the steps, from 0, whose gradient was clipped
  std::vector<SkippedStep> skipped;
  std::vector<EvaluationRecord> evaluations;
  std::vector<double> step_seconds;
  double samples_per_second = 0;  ///< or tokens: throughput of the median step after the first
  std::string requested_policy;
  std::string policy;                                ///< the policy that ran
  std::uint64_t rank_bytes_predicted = 0;            ///< sent between ranks in the whole run
  std::uint64_t rank_bytes_measured = 0;             ///< the same, counted by StarPU-MPI
  bool rank_bytes_known = false;                     ///< StarPU-MPI's counting was on
  std::vector<std::uint64_t> memory_predicted = {};  ///< main memory of each rank; empty with emulated jobs
  std::vector<std::uint64_t> memory_measured = {};   ///< the same: the peak of each process
  bool is_complete = true;  ///< false when a signal has ended the run before its last step
  std::optional<CheckpointSummary> checkpoints;  ///< with `checkpoint.folder`
  std::optional<GpuReport> gpus;                 ///< nullopt if all workers are on cores
};

/// Returns the beginning of every report: configuration, versions, machine, location of each rank,
/// time, and the partition if one was chosen. The configuration can be read again as one.
nlohmann::ordered_json report_head(const Config& config, const std::optional<PartitionChoice>& partition,
                                   const std::vector<RankLocation>& locations);

/// Returns the report of a training run: configuration, versions, machine, losses, times, and the text
/// offsets of the first three steps. Makespan, bubble fraction, peak stashes and transfers have a
/// predicted and a measured value. Times are in seconds; arrays have an element per worker. "explain" has the
/// data that `starpipe explain` reads, and the figures that it prints.
nlohmann::ordered_json make_report(const Config& config, const std::optional<PartitionChoice>& partition,
                                   const Experiment& experiment, const std::vector<RankLocation>& locations,
                                   const TrainRecord& record, const plan::ComparedRun& run,
                                   const Measurement& measurement);

/// Returns the tables that `train` prints: predicted and measured values of the whole step, of each worker
/// and of each GPU.
std::string training_table(const plan::ComparedRun& run, std::span<const WorkerRecord> workers,
                           const TrainRecord& record);

}  // namespace starpipe::runtime
