// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine/finite_check.hpp"
#include "runtime/report/gpu_copies.hpp"
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

/// The record of a training run, complete on rank 0.
struct TrainRecord {
  /// Of each step: mean loss over micro-batches, before the step's update. Empty with emulated jobs.
  std::vector<double> losses;
  std::vector<double> gradient_norms;  ///< of each step, before clipping; empty with emulated jobs
  std::vector<double> learning_rates;  ///< likewise
  std::vector<int> clipped;            ///< the steps, from 0, whose gradient was clipped
  std::vector<SkippedStep> skipped;
  std::vector<double> step_seconds;
  double samples_per_second = 0;  ///< or tokens: throughput of the median step after the first
  std::string requested_policy;
  std::string policy;                      ///< the policy that ran
  std::uint64_t rank_bytes_predicted = 0;  ///< sent between ranks in the whole run
  std::uint64_t rank_bytes_measured = 0;   ///< the same, counted by StarPU-MPI
  bool rank_bytes_known = false;           ///< whether StarPU-MPI's counting was on
  std::optional<GpuReport> gpus;           ///< nothing if all workers are on cores
};

}  // namespace starpipe::runtime
