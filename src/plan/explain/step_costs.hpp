// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "plan/explain/recorded_step.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::plan {

/// The costs with which a prediction is compared with measured steps, from these steps' own times. Steps are
/// added one by one and not kept.
class StepCosts {
 public:
  /// Adds a step. All steps are of one planned schedule. O(jobs).
  void add(const RecordedStep& step);

  /// Returns, for each stage and pass, and each slice, the mean duration over the micro-batches of a step,
  /// and of these the median over the steps. The mean, because a makespan is a sum of durations; the median,
  /// because one disturbed step must not count. BW counts as B, with W = 0. Where a stage has BW for some
  /// micro-batches and B and W for others, BW is not counted. At least one step must have been added.
  ///
  /// All pairs of workers get one link, with `beta` 0. Its `alpha` is the lower median over the pairs of the
  /// lower median of the transfers observed from one to the other. So one slow pair among others does not
  /// count, however many transfers it has. Copies to each kind of home, and back, get the lower median time
  /// of one, whatever its size.
  [[nodiscard]] Costs costs(std::vector<StageSizes> sizes = {StageSizes{}},
                            std::vector<SharedWeights> shared = {}) const;

 private:
  int slices_ = 1;
  std::vector<std::vector<double>> means_;  // [(stage * slices + slice) * pass_count + pass]: one per step
  std::map<WorkerPair, std::vector<double>> transfers_;  // observed ones
  std::map<Home, std::vector<double>> copies_;
  bool prefetch_ = true;
};

/// Throws InputError unless `work` has one entry per stage, or one for all stages.
void require_work(const Schedule& schedule, std::span<const Durations> work);
/// Returns how much there is to compute in a job of this stage and pass, so that jobs of different stages can
/// be compared; 0 if unknown.
double work_of(std::span<const Durations> work, int stage, Pass pass);

/// Returns the median; of an even number of values the smaller of the two in the middle, so that it is one of
/// the values; nullopt if there are none. Expected O(values).
inline std::optional<double> lower_median(std::vector<double> values) {
  if (values.empty()) return std::nullopt;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

/// Speed of one worker with one pass of one stage.
struct KernelSpeed : Kernel {
  int jobs = 0;
  double mean = 0;  ///< seconds of a job
  /// The time of a unit of work, over the typical one: the lower median over all stages and workers of this
  /// pass. 1 when nothing can be compared.
  double ratio = 1;
};

/// Returns the speed of every kernel, the slowest first. `work`: FLOPs or expected durations of each stage,
/// as `Costs::durations`: one entry per stage, or one for all; {Durations{}} when unknown. Passes without
/// work have the ratio 1. Throws InputError for another number of entries. O(jobs log jobs).
std::vector<KernelSpeed> kernel_speeds(const RecordedStep& step, std::span<const Durations> work);

/// Durations of the transfers from one worker to another.
struct LinkSpeed : WorkerPair {
  int transfers = 0;  ///< observed ones
  double median = 0;  ///< seconds
  double ratio = 1;   ///< to the lower median of all links' medians
};

/// Returns the observed transfers by link, the slowest first. O(jobs log jobs).
std::vector<LinkSpeed> link_speeds(const RecordedStep& step);

}  // namespace starpipe::plan
