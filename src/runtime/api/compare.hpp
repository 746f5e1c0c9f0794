// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "plan/explain/recorded_step.hpp"
#include "runtime/api/agreed_run.hpp"
#include "runtime/session/policy_choice.hpp"
#include "runtime/setup/experiment.hpp"
#include "starpipe/plan/simulate/costs.hpp"
#include "starpipe/runtime/config/config.hpp"

namespace starpipe::runtime {

/// A comparison to run: every schedule under every policy, several times.
struct Comparison {
  /// Names as `runtime.policy` takes them, at least one; no name twice.
  std::vector<std::string> policies;
  /// Names as `schedule.name` takes them; no schedule twice. Each runs in place of the configured schedule,
  /// under every policy. Empty: the configured schedule runs.
  std::vector<std::string> schedules = {};
  int repetitions = 5;
  /// Seed of the order of runs, which is shuffled anew in each repetition.
  std::uint64_t seed = 1;
};

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

  /// Returns the makespans of the repetitions, the smallest first, seconds.
  [[nodiscard]] std::vector<double> makespans() const;
  /// Returns the number of steps of all repetitions whose update was skipped.
  [[nodiscard]] int skipped() const;
  [[nodiscard]] double median() const { return makespans()[repetitions.size() / 2]; }
  [[nodiscard]] const Repetition& median_repetition() const;
};

/// A schedule and its runs.
struct ComparedSchedule {
  const AgreedRun* run = nullptr;
  double stage_share = 1;  ///< see OtherSchedule
  std::vector<ComparedPolicy> policies = {};

  [[nodiscard]] const plan::Schedule& schedule() const { return run->experiment.schedule; }
};

/// The runs of all schedules.
struct ComparedRuns {
  AgreedRuns agreed;  ///< what `schedules` point to
  std::vector<ComparedSchedule> schedules;
};

using CompareCheck = std::function<void(const std::vector<AgreedRun>& runs)>;
using CompareProgress =
    std::function<void(int repetition, const ComparedSchedule& schedule, const PolicyChoice& policy)>;

/// Returns the configurations of the schedules to compare: `config` alone, or one for each of `schedules`.
/// Throws InputError for a policy or schedule that is unknown or named twice, and for a key that applies to
/// no policy. Needs no ranks, so that mistakes are found before data are read or cores are bound.
std::vector<OtherSchedule> configs_to_compare(const Config& config, const Comparison& comparison);

/// Runs the same work under several schedules and policies. Each repetition of a schedule under a policy
/// starts StarPU and the model anew and runs `training.steps` steps; its makespan is the median of the steps
/// after the first. `configs`: of `configs_to_compare`. `check`: called on every rank before the first run;
/// its InputError is thrown on every rank. `progress`: called on rank 0 before each run. Collective.
///
/// Schedules may need different numbers of stages. The model is then cut differently. With `runtime.emulate`
/// a time that is one for all stages is scaled, so that the work is the same: it is the time of a stage of
/// the configured schedule. Schedules that cannot be made are left out: AgreedRuns::left_out says why. Throws
/// InputError if none can be made.
ComparedRuns compare(const Mpi& mpi, std::vector<OtherSchedule> configs, const Comparison& comparison,
                     const CompareCheck& check, const CompareProgress& progress);

}  // namespace starpipe::runtime
