// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/report/gpu_copies.hpp"
#include "runtime/report/gpu_memory_report.hpp"

namespace starpipe::runtime {

/// The GPUs of a run.
struct GpuReport {
  std::vector<GpuUse> memory;
  GpuCopies copies;
};

/// A training run, as rank 0 knows it at the end.
struct TrainRecord {
  std::vector<double>
      losses;  ///< by step: mean over micro-batches, before the step's update; none of emulated jobs
  std::vector<double> step_seconds;  ///< by step
  /// Throughput of the median step after the first.
  double units_per_second = 0;
  std::string requested_policy;
  std::string policy;                      ///< that ran
  std::uint64_t rank_bytes_predicted = 0;  ///< crossing between ranks, whole run
  std::uint64_t rank_bytes_measured = 0;   ///< by StarPU-MPI's statistics
  bool rank_bytes_known = false;           ///< whether these were on
  std::optional<GpuReport> gpus;           ///< nothing when no worker is on a GPU
};

}  // namespace starpipe::runtime
