// SPDX-License-Identifier: Apache-2.0
// The two sides of a report, from the records of the engine's steps.
#pragma once

#include <cstddef>
#include <deque>
#include <vector>

#include "plan/explain/compared_run.hpp"
#include "plan/explain/recorded_step.hpp"
#include "runtime/engine/engine.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"

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
  /// else their sizes count, and their durations by FLOPs. `schedule` must outlive this.
  Measurement(const plan::Schedule& schedule, plan::Costs costs, bool known = false);

  /// Call it before each step. Drops the records that the step's records will replace, so that both are not
  /// in memory together.
  void begin_step();
  void end_step(StepResult step);

  /// Call it after the last step, when at least one has ended. O(jobs log jobs) for each compared step.
  [[nodiscard]] plan::ComparedRun compared() const;
  /// Makespans of all steps after the first, seconds.
  [[nodiscard]] const std::vector<double>& makespans() const { return makespans_; }
  /// Transfers and peak memory of each worker in the last step.
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

}  // namespace starpipe::runtime
