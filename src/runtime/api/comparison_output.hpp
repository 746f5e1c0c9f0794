// SPDX-License-Identifier: Apache-2.0
// What `compare` has measured, and its table, JSON and picture.
#pragma once

#include <string>
#include <vector>

#include "runtime/api/compare.hpp"
#include "runtime/api/run_on_ranks.hpp"
#include "runtime/report/measurement.hpp"
#include "runtime/session/policy_choice.hpp"
#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::runtime {

/// One run of a schedule under a policy.
struct Repetition {
  double makespan;         ///< of the median step, seconds
  plan::RecordedStep run;  ///< the median step
  plan::Costs costs;       ///< of the prediction
  double submission;       ///< of the median step, seconds
  int skipped;             ///< steps whose update was skipped for infinity or NaN
};

/// A policy and its runs of one schedule.
struct ComparedPolicy {
  PolicyChoice choice;
  std::string ran;                      ///< StarPU's name of the policy that ran
  std::vector<Repetition> repetitions;  ///< on rank 0 only

  /// Makespans of the repetitions, the smallest first, seconds.
  [[nodiscard]] std::vector<double> makespans() const;
  /// Steps of all repetitions whose update was skipped.
  [[nodiscard]] int skipped() const;
  [[nodiscard]] double median() const { return makespans()[repetitions.size() / 2]; }
  [[nodiscard]] const Repetition& median_repetition() const;
};

/// A schedule and its runs. `run` must outlive it.
struct ComparedSchedule {
  const AgreedRun* run = nullptr;
  double stage_share = 1;  ///< see OtherSchedule
  std::vector<ComparedPolicy> policies = {};

  [[nodiscard]] const plan::Schedule& schedule() const { return run->experiment.schedule; }
};

/// On rank 0, after all repetitions: prints and writes what `comparison` asks for.
void write_outputs(const Comparison& comparison, const std::vector<ComparedSchedule>& schedules);

}  // namespace starpipe::runtime
