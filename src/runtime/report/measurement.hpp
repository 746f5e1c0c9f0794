// SPDX-License-Identifier: Apache-2.0
// Prediction beside measurement: from what the engine's steps recorded.
#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "runtime/engine/engine.hpp"
#include "runtime/step/task_graph.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"
#include "starpipe/plan/simulate/timeline.hpp"

namespace starpipe::runtime {

/// Bytes that must cross between ranks in one step: each datum once to each rank but its owner's that
/// reads it.
std::uint64_t bytes_between_ranks(const TaskGraph& graph, const WorkerMap& map);

/// A run of the schedule with its own w and n: the workers that really ran the jobs, in the order in which
/// they did.
struct MeasuredRun {
  plan::Schedule schedule;
  plan::Timeline timeline;  ///< seconds, from the first job's start
};

/// Collects a training run's steps on rank 0.
///
/// The first step warms up; the next `calibration_steps` give the costs that the prediction uses: the
/// mean duration of each stage and pass, and the mean delay of a transfer (from the end of a job to the
/// start of the job on another worker that was idle for want of it), unless they are known. The rest are
/// measured. Short runs use what they have for both.
class Measurement {
 public:
  static constexpr int calibration_steps = 3;

  /// `known`: the costs when they need no measuring (emulated jobs).
  Measurement(const plan::Schedule& schedule, std::vector<plan::StageSizes> sizes,
              std::optional<plan::Costs> known = std::nullopt);

  void add(const StepResult& step);

  /// The known costs, or the measured durations and transfer delay and the model's sizes.
  [[nodiscard]] plan::Costs costs() const;
  [[nodiscard]] plan::Timeline predicted() const;
  /// The step with the median makespan among the measured ones (of the last `window`).
  [[nodiscard]] MeasuredRun measured() const;
  /// Makespans of all measured steps, seconds.
  [[nodiscard]] std::vector<double> makespans() const { return makespans_; }
  /// What each worker received and held in the last step.
  [[nodiscard]] const std::vector<WorkerRecord>& workers() const { return workers_; }

 private:
  static constexpr std::size_t window = 64;

  void add_delays(const std::vector<JobRecord>& jobs);
  [[nodiscard]] static double makespan(const std::vector<JobRecord>& jobs);

  const plan::Schedule& schedule_;
  std::vector<plan::StageSizes> sizes_;
  std::optional<plan::Costs> known_;
  int steps_ = 0;
  std::vector<std::vector<double>> durations_;  // by stage * 4 + pass
  std::vector<double> delays_;
  std::vector<double> makespans_;
  std::deque<std::vector<JobRecord>> recent_;
  std::vector<WorkerRecord> workers_;
};

}  // namespace starpipe::runtime
