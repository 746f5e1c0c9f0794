// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <span>
#include <vector>

#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"
#include "starpipe/plan/simulate/timeline.hpp"

namespace starpipe::plan {

/// A measured or simulated step, from which its time can be explained. Times are in seconds. Each vector has
/// `id_count()` entries, one for each JobId; the entry of an id without a job is 0.
struct RecordedStep {
  Schedule planned;
  /// The same jobs under the ordered discipline: its w names the worker that ran each job, its n is the order
  /// in which they started. The holders of weights are those planned. Copies have an n such that no job waits
  /// for memory that was not free when it started.
  Schedule as_run;
  Timeline timeline;              ///< of `as_run`, with `ready`
  std::vector<double> submitted;  ///< may be negative. Simulated: all 0
  /// For jobs that receive something, as JobTimes::transfer defines it; 0 for others. See `measured_step`.
  std::vector<double> transfer;
  /// True if the job receives something and its worker would have seen a longer transfer. False if a producer
  /// on the job's own worker ended after the last one elsewhere: the job did not wait for the transfer.
  std::vector<bool> transfer_observed;
  bool prefetch = true;  ///< as in Costs

  /// Returns the step's own durations, and with `transfers` its own transfer times too.
  [[nodiscard]] JobTimes times(bool transfers) const;
};

/// Returns the record of a measured step. `jobs`: each job of `planned` once, in any order. Times are shifted
/// so that the first job starts at 0. A ready time later than the start counts as the start, and a submission
/// later than the ready time as the ready time. `costs`: its sizes and `prefetch` are read.
///
/// With prefetch, a transfer lasts from the end of the last producer on another worker, or from the
/// submission of the job if that came later, until the job was ready. Where it was not observed this is only
/// a bound, and the smaller of the bound and a median counts: of the transfers observed in the step on the
/// same link, or of all where there are none. Without prefetch a job is ready when it starts, and its
/// transfer lasts from the time at which it was submitted, its producers and the job before it on its worker
/// had ended. Fetches before the first job's start do not count, since no makespan has them.
///
/// Throws InputError for a job that is missing, unknown or there twice, for a worker that does not exist, for
/// a time that is not finite or an end before its start, and for an order that data dependencies forbid.
/// O(jobs log jobs).
RecordedStep measured_step(const Schedule& planned, std::span<const JobRun> jobs, const Costs& costs = {});

/// Returns the record of a simulated step: of `simulate(schedule, costs, times)`, with its errors. All jobs
/// count as submitted at time 0. Times are not shifted: the first job may start later, when it must fetch its
/// weights.
RecordedStep simulated_step(const Schedule& schedule, const Costs& costs, const JobTimes& times = {});

/// The jobs of one pass of a stage on the worker that runs them.
struct Kernel {
  int stage = 0;
  Pass pass = Pass::F;
  int worker = 0;

  friend auto operator<=>(const Kernel&, const Kernel&) = default;
};
Kernel kernel_of(const Schedule& as_run, JobId id);

/// The way of data from one worker to another.
struct WorkerPair {
  int from = 0;
  int to = 0;

  friend auto operator<=>(const WorkerPair&, const WorkerPair&) = default;
};
/// Returns the times of the observed transfers of a step. O(jobs).
std::map<WorkerPair, std::vector<double>> observed_transfers(const RecordedStep& step);

/// The last input of a job that comes from another worker.
struct LastInput {
  std::optional<int> from = {};        ///< the worker that sends; nullopt if the job receives no data
  std::optional<JobId> producer = {};  ///< nullopt for weights
  double produced = 0;                 ///< end of the producer; of weights 0, the begin of the step
  double own_produced = 0;  ///< the latest end of a producer on the job's own worker; 0 without one
  /// The copy that ended last of those for which the job waits: L, or O that frees memory; nullopt without
  /// one.
  std::optional<JobId> copy = {};
  double copied = 0;  ///< its end
};

/// Returns the last input of job `id`: the result of the producer on another worker that ended last. A job
/// without such a producer receives its weights, unless its own worker holds them.
LastInput last_input(const Schedule& as_run, const Timeline& timeline, JobId id);

}  // namespace starpipe::plan
