// SPDX-License-Identifier: Apache-2.0
// The two sides of a report, from the records of the engine's steps: the first steps give the costs of the
// prediction, the steps after them are measured.
#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "runtime/engine/engine.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"
#include "starpipe/plan/simulate/timeline.hpp"

namespace starpipe::runtime {

/// A measured step as a schedule: its w is the worker that ran each job, its n the order of their starts.
struct MeasuredRun {
  plan::Schedule schedule;
  plan::Timeline timeline;  ///< seconds, from the first job's start
};

/// Collects a training run's steps on rank 0.
///
/// The first step warms up. The next `calibration_steps` give the costs for the prediction, unless the costs
/// are known: the mean duration of each pass of each stage, and the mean delay of a transfer. The delay of a
/// transfer: the time from the end of a job to the start of the job that reads its result, on another worker
/// that was idle meanwhile. The remaining steps are measured. Runs that are too short use the same steps for
/// both.
class Measurement {
 public:
  static constexpr int calibration_steps = 3;

  /// `known`: costs that need not be measured, those of emulated jobs.
  Measurement(const plan::Schedule& schedule, std::vector<plan::StageSizes> sizes,
              std::optional<plan::Costs> known = std::nullopt);

  void add(const StepResult& step);

  /// The known costs; or else measured durations, measured transfer delay and the model's sizes.
  [[nodiscard]] plan::Costs costs() const;
  [[nodiscard]] plan::Timeline predicted() const;
  /// The step with the median makespan among the last `kept_steps` measured steps.
  [[nodiscard]] MeasuredRun measured() const;
  /// Makespans of all measured steps, seconds.
  [[nodiscard]] std::vector<double> makespans() const { return makespans_; }
  /// Transfers and peak memory of each worker in the last step.
  [[nodiscard]] const std::vector<WorkerRecord>& workers() const { return workers_; }

 private:
  static constexpr std::size_t kept_steps = 64;

  void add_delays(const std::vector<JobRecord>& jobs);
  [[nodiscard]] static double makespan(const std::vector<JobRecord>& jobs);

  const plan::Schedule& schedule_;
  std::vector<plan::StageSizes> sizes_;
  std::optional<plan::Costs> known_;
  int steps_ = 0;
  std::vector<std::vector<double>> durations_;  // [stage * pass_count + pass], seconds
  std::vector<double> delays_;
  std::vector<double> makespans_;
  std::deque<std::vector<JobRecord>> recent_;
  std::vector<WorkerRecord> workers_;
};

}  // namespace starpipe::runtime
