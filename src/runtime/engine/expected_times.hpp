// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "runtime/engine/meter.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::runtime {

/// Owns the mean duration of each stage and pass in the last step, for StarPU's policies that plan by time
/// (dmdas and its like) and for simulated GPUs. The thread that runs the steps calls `learn` when no task
/// runs; any thread may ask during a step.
class ExpectedTimes {
 public:
  /// `known`: the durations in seconds where they are known; nothing is learnt then. nullptr elsewhere.
  /// `schedule` must outlive this.
  explicit ExpectedTimes(const plan::Schedule& schedule, const plan::Costs* known = nullptr);

  /// NaN when no such job has run yet.
  [[nodiscard]] double microseconds(plan::JobId job) const { return expected_[position(job)]; }
  /// `jobs`: of one step, on this rank. Stages and passes that are not among them keep their times.
  void learn(std::span<const JobRecord> jobs);

 private:
  [[nodiscard]] std::size_t position(plan::JobId job) const;

  const plan::Schedule& schedule_;
  bool is_known_;
  std::vector<double> expected_;  // microseconds, by stage and pass
};

}  // namespace starpipe::runtime
