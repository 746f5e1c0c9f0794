// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <limits>
#include <optional>
#include <vector>

#include "starpipe/base/index.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/search/search_problem.hpp"

namespace starpipe::plan {

/// The start time of a job that cannot start.
inline constexpr double never = std::numeric_limits<double>::infinity();

/// The jobs of each worker, in the order in which it runs them.
using Orders = std::vector<std::vector<JobId>>;

/// A search problem as flat arrays. Jobs have the numbers of a Schedule whose backward passes are all split:
/// the job number is `3 * (micro-batch * stages + stage) + pass`, where F is 0, B is 1 and W is 2. A job
/// waits for at most one other job of its micro-batch: F for F of the stage before, B for B of the stage
/// after, B of the last stage for its F, W for its B. These imply that B comes after F of its own stage. With
/// slices F also waits for the slice before, and B for the slice after.
///
/// Where a stash has no home, R is part of B: B lasts R longer, takes the memory that F does not, and begins
/// R before the gradient arrives.
struct Instance {
  /// Throws InputError for a problem whose counts, times, sizes or workers do not fit together.
  explicit Instance(const SearchProblem& problem);

  [[nodiscard]] JobId job(int pass, int stage, int microbatch) const {
    return static_cast<JobId>((microbatch * stages + stage) * 3 + pass);
  }
  [[nodiscard]] static int pass_of(JobId job) { return static_cast<int>(job % 3); }
  [[nodiscard]] int stage_of(JobId job) const { return stage_of_job[job]; }
  [[nodiscard]] int microbatch_of(JobId job) const { return static_cast<int>(job) / 3 / stages; }
  [[nodiscard]] JobId jobs() const { return static_cast<JobId>(stages * microbatches * 3); }
  /// Returns the place of the job's stage, and of its slice, in the vectors "by stage and slice".
  [[nodiscard]] std::size_t entry_of(JobId job) const {
    const std::size_t s = index(stage_of(job));
    return slices == 1 ? s : s * index(slices) + index(microbatch_of(job) % slices);
  }
  [[nodiscard]] double time_of(JobId job) const {
    const std::size_t at = entry_of(job);
    return time[job % 3][at] + (pass_of(job) == 1 && recomputes(job) ? remaking[at] : 0);
  }
  /// True if the stash of the job's stage and micro-batch has no home.
  [[nodiscard]] bool recomputes(JobId job) const { return remade[job / 3]; }

  /// Calls f(JobId, double) for each job that waits for the result of `job`, and the time of its transfer.
  template <class Function>
  void for_each_next(JobId job, Function&& f) const {
    const int s = stage_of(job);
    const int slice = slices == 1 ? 0 : microbatch_of(job) % slices;
    const auto of_microbatch = static_cast<JobId>(3 * stages);
    if (pass_of(job) == 0) {
      s + 1 < stages ? f(job + 3, forward_lag[entry_of(job)]) : f(job + 1, 0.0);
      if (slice + 1 < slices) f(job + of_microbatch, 0.0);
    } else if (pass_of(job) == 1) {
      if (s > 0) {
        const std::size_t before = entry_of(job - 3);
        f(job - 3, backward_lag[before] - (recomputes(job - 3) ? head_start[before] : 0));
      }
      f(job + 1, 0.0);
      if (slice > 0) f(job - of_microbatch, 0.0);
    }
  }
  /// Returns the memory that the worker takes for the job's stash at its start (F, or B where it includes R),
  /// or frees at its end (W).
  [[nodiscard]] double memory_change(JobId job) const {
    const double size = stash[entry_of(job)];
    if (pass_of(job) == 2) return -size;
    return (pass_of(job) == 1) == recomputes(job) ? size : 0;
  }

  /// True if `memory`, taken by stashes, is within the worker's limit.
  [[nodiscard]] bool fits(int worker, double memory) const {
    return memory <= limits_with_slack[index(worker)];
  }
  /// Returns the memory of one stash of each of the worker's stages and slices. No stash of a sequence ends
  /// before its last stage has run F of the last slice, so the worker must hold all of these at once.
  [[nodiscard]] double min_memory(int worker) const;
  /// Returns the memory of the worker's largest stash: enough where no stash has a home.
  [[nodiscard]] double largest_stash(int worker) const;
  /// Returns the peak memory of each worker's stashes.
  [[nodiscard]] std::vector<double> peak_memory(const Orders& orders) const;

  int workers;
  int microbatches;
  int slices;
  int stages;
  std::vector<int> worker_of;               // by stage
  std::vector<int> stage_of_job;            // by JobId; a table is faster than dividing
  std::vector<std::vector<int>> stages_of;  // by worker, ascending
  // By stage and slice (see entry_of):
  std::array<std::vector<double>, 3> time;  // by pass (0 to 2) first
  std::vector<double> forward_lag;          // time of the activation's transfer to the next stage
  std::vector<double> backward_lag;         // time of the gradient's transfer from the next stage
  std::vector<double> remaking;             // time of R
  std::vector<double> head_start;           // how long R may run before the gradient arrives
  std::vector<double> stash;                // the memory of one stash
  std::vector<double> copy_time;            // by stage: time of O, and of L; empty if stashes are not copied
  std::vector<double> copy_passing;         // by stage: the part in which bytes pass the link
  int link_workers = 1;                     // so many neighbours share a link to the home
  std::vector<bool> remade;                 // by job number / 3: the stash has no home
  std::vector<double> limits;               // by worker
  std::vector<double> limits_with_slack;    // above `limits` by the rounding errors of sums
};

/// Returns the orders as a schedule named "search". A schedule's memory limits count stashes, so it has
/// limits only if all stashes take the same memory, above 0, and some limit is finite.
Schedule to_schedule(const Instance& instance, const Orders& orders);

/// Returns the order in which each worker starts its jobs when `schedule` is simulated with `costs`. A BW
/// becomes a B and then a W. Returns nullopt if the schedule's stages, micro-batches, workers or placement
/// are not the instance's, or if a worker exceeds its limit.
std::optional<Orders> from_schedule(const Instance& instance, const Schedule& schedule, const Costs& costs);

}  // namespace starpipe::plan
