// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <set>
#include <vector>

#include "starpipe/plan/schedule/schedule.hpp"

namespace starpipe::plan {

/// The ready jobs of one worker, and the discipline that picks among them. `simulate` and the StarPU
/// policy both run this class, so they agree.
///
/// Why the bounded discipline always makes progress. Let c be the largest number of stages of one micro-batch
/// whose stashes the worker makes. The age of a micro-batch is the smallest n of its forward jobs, over all
/// workers; smaller is older. The oldest micro-batch here is the oldest with unfinished jobs on this worker.
/// It may always start the jobs that make its stashes (F, or R). All other micro-batches together may hold at
/// most limit - c stashes, so c stashes are left for the oldest. So the micro-batch that is oldest on all
/// workers can always continue, whatever the timing, and no worker exceeds its limit. With one stage per
/// worker (c = 1) the rule is: a stash must not begin while it would exceed the limit, and the other
/// micro-batches together hold at most limit - 1 stashes. `check` refuses limits below c, and schedules that
/// run the maker of a stash, B and W of a stage and micro-batch on different workers.
///
/// Where no stash has a home, R is refused while the worker holds as many stashes as its limit. This rule
/// never stops a worker for good: R is late, so its B is ready as soon as it has ended, W is ready as soon as
/// B has ended, and neither is ever refused.
///
/// F of a pair starts when its partner is ready, too.
///
/// Not thread-safe. The schedule must outlive the queue.
class WorkerQueue {
 public:
  WorkerQueue(const Schedule& schedule, int worker);

  /// Adds a ready job: its inputs have been computed, and those that are prefetched have arrived. Each job of
  /// the worker is added once.
  void push(JobId id);

  /// Returns the job to start now, or nullopt if no job is ready or the discipline refuses all ready jobs.
  [[nodiscard]] std::optional<JobId> pop();

  /// Tells the queue that popped job `id` has ended. The discipline may now accept a job that it refused
  /// before, so call `pop` again.
  void finish(JobId id);

  /// True if job `id`, pushed now, would be among the next `max` jobs to start. Under the ordered discipline
  /// these are the next `max` jobs of the worker's order; under the others, `id` is near when fewer than
  /// `max` jobs are ready.
  [[nodiscard]] bool is_near(JobId id, std::size_t max) const;
  /// Returns ready jobs that are likely to start soon, at most `max` of them. Under the ordered discipline:
  /// those among the next `max` jobs of the worker's order. Under greedy: the job with the smallest n. Under
  /// bounded at most two: the job with the smallest n of those that begin a stash, which the discipline may
  /// refuse now, and the job with the smallest n of all others. O(max).
  [[nodiscard]] std::vector<JobId> ready_and_near(std::size_t max) const;

  /// Returns the number of jobs pushed and not yet popped.
  [[nodiscard]] std::size_t ready() const { return ready_count_; }
  /// Returns the number of jobs of this worker that have not ended.
  [[nodiscard]] std::size_t unfinished() const { return unfinished_; }
  /// Returns the number of stashes of jobs that have started here and whose W (or BW) has not ended. A stash
  /// counts when this worker computes both the job that makes the stash (F or R) and W (or BW) of its stage
  /// and micro-batch.
  [[nodiscard]] int live() const { return live_; }

 private:
  struct ByTurn {
    const Schedule* schedule;
    bool operator()(JobId a, JobId b) const { return schedule->turn(a) < schedule->turn(b); }
  };
  using ReadyJobs = std::set<JobId, ByTurn>;  // smallest n first

  [[nodiscard]] std::optional<JobId> pop_ordered();
  [[nodiscard]] std::optional<JobId> pop_by_turn();
  void prepare_bounded();
  void skip_finished();
  [[nodiscard]] const ReadyJobs* allowed_to_begin() const;
  [[nodiscard]] bool begins_stash(JobId id) const;
  [[nodiscard]] bool keeps_stash(JobId id) const;

  const Schedule* schedule_;
  int worker_;
  std::size_t ready_count_ = 0;
  std::size_t unfinished_;
  int live_ = 0;

  // greedy: every ready job; bounded: every ready job that does not begin a stash.
  ReadyJobs ready_;

  // ordered: by position in the worker's order.
  std::vector<bool> is_ready_;
  std::size_t next_ = 0;

  // bounded
  int limit_ = 0;                   // stashes
  int reserve_ = 0;                 // c of the class comment
  std::size_t oldest_ = 0;          // index into the schedule's micro-batches by age
  std::vector<int> unfinished_of_;  // jobs left here, by micro-batch
  std::vector<int> held_;           // stashes held here, by micro-batch
  // Every ready job that begins a stash: of its micro-batch, and of all micro-batches.
  std::vector<ReadyJobs> stash_beginners_of_;  // by micro-batch
  ReadyJobs stash_beginners_;
};

}  // namespace starpipe::plan
