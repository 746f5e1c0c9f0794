// SPDX-License-Identifier: Apache-2.0
// What a training run tells: the report file and the table on the terminal.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/report/gpu_report.hpp"
#include "runtime/report/measurement.hpp"
#include "runtime/session/rank_location.hpp"
#include "starpipe/runtime/setup/experiment.hpp"

namespace starpipe::runtime {

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

/// What every report starts with: configuration, versions, machine, where each rank ran, time.
nlohmann::ordered_json report_head(const Config& config, const std::vector<RankLocation>& locations);

/// The report: configuration, versions, machine, losses, times, text offsets of the first three steps, and
/// for makespan, bubble fraction, peak activations and transfers the predicted beside the measured value.
/// Times in seconds, arrays by worker.
nlohmann::ordered_json make_report(const Config& config, const Experiment& experiment,
                                   const std::vector<RankLocation>& locations, const TrainRecord& record,
                                   const plan::Timeline& predicted, const MeasuredRun& measured,
                                   const Measurement& measurement);

/// Predicted versus measured, for people.
std::string comparison_table(const plan::Schedule& schedule, const plan::Timeline& predicted,
                             const MeasuredRun& measured, const Measurement& measurement,
                             const TrainRecord& record);

}  // namespace starpipe::runtime
