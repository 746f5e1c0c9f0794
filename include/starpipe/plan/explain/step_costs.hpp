// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "starpipe/plan/explain/recorded_step.hpp"
#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::plan {

/// The costs with which a prediction is compared with measured steps, from these steps' own times. Steps are
/// added one after the other and not kept.
class StepCosts {
 public:
  /// Adds a step. All steps are of one planned schedule. O(jobs).
  void add(const RecordedStep& step);

  /// For each stage and pass, the mean duration over the micro-batches of a step, and of these the median
  /// over the steps. The mean, because a makespan is a sum of durations; the median, because one disturbed
  /// step must not count. `alpha` is the median of all observed transfers, `beta` is 0. BW counts as B, with
  /// W = 0. Where a stage has BW for some micro-batches and B and W for others, BW is not counted. At least
  /// one step must have been added.
  [[nodiscard]] Costs costs(std::vector<StageSizes> sizes = {StageSizes{}},
                            std::vector<SharedWeights> shared = {}) const;

 private:
  std::vector<std::vector<double>> means_;  // [stage * pass_count + pass]: one a step
  std::vector<double> transfers_;           // observed ones of all steps
  bool prefetch_ = true;
};

}  // namespace starpipe::plan
