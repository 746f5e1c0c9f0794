// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine/finite_check.hpp"
#include "runtime/report/gpu_report.hpp"
#include "runtime/report/gpu_memory_report.hpp"

namespace starpipe::runtime {

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
  int failures = 0;          ///< those that could not be written
  std::string last_problem;  ///< why the last one could not be; empty when it was
};

/// An evaluation in a training run.
struct EvaluationRecord {
  int step;  ///< how many steps were trained before it
  double loss;
  int microbatches;
  double seconds;
};

/// The record of a training run, complete on rank 0.
struct TrainRecord {
  int first_step = 0;  ///< from 0; not 0 in a run that resumes. The lists below begin with it
  /// Of each step: mean loss over micro-batches, before the step's update. Empty with emulated jobs.
  std::vector<double> losses;
  std::vector<double> gradient_norms;  ///< of each step, before clipping; empty with emulated jobs
  std::vector<double> learning_rates;  ///< likewise
  std::vector<int> clipped;            ///< the steps, from 0, whose gradient was clipped
  std::vector<SkippedStep> skipped;
  std::vector<EvaluationRecord> evaluations;
  std::vector<double> step_seconds;
  double samples_per_second = 0;  ///< or tokens: throughput of the median step after the first
  std::string requested_policy;
  std::string policy;                      ///< the policy that ran
  std::uint64_t rank_bytes_predicted = 0;  ///< sent between ranks in the whole run
  std::uint64_t rank_bytes_measured = 0;   ///< the same, counted by StarPU-MPI
  bool rank_bytes_known = false;           ///< whether StarPU-MPI's counting was on
  bool is_complete = true;                 ///< false when a signal has ended the run before its last step
  std::optional<CheckpointSummary> checkpoints;  ///< with `checkpoint.folder`
  std::optional<GpuReport> gpus;                 ///< nothing if all workers are on cores
};

}  // namespace starpipe::runtime
