// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <utility>
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
  /// step must not count. BW counts as B, with W = 0. Where a stage has BW for some micro-batches and B and W
  /// for others, BW is not counted. At least one step must have been added.
  ///
  /// All pairs of workers get one link, with `beta` 0. Its `alpha` is the lower median over the pairs of the
  /// lower median of the transfers observed from one to the other. So one slow pair among others does not
  /// count, however many transfers it has.
  [[nodiscard]] Costs costs(std::vector<StageSizes> sizes = {StageSizes{}},
                            std::vector<SharedWeights> shared = {}) const;

 private:
  std::vector<std::vector<double>> means_;                        // [stage * pass_count + pass]: one a step
  std::map<std::pair<int, int>, std::vector<double>> transfers_;  // observed ones, by sender and receiver
  bool prefetch_ = true;
};

}  // namespace starpipe::plan
