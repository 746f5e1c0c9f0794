// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <queue>
#include <vector>

#include "starpipe/plan/schedule/schedule.hpp"

namespace starpipe::plan {

/// The ready jobs of one worker, and the discipline that picks among them. `simulate` and the StarPU
/// policy run this same class, which is why they agree.
///
/// Progress of the bounded discipline. Let c be the most stages of one micro-batch that the worker
/// computes, and call the first micro-batch (by the smallest n of its forward jobs, over all workers)
/// with unfinished jobs here the oldest. The oldest may always start its forward passes; all others
/// together may hold at most limit - c stashes. So the oldest micro-batch overall can always go on, on
/// every worker, whatever the timing, and the limit is never passed. With one stage a worker (c = 1)
/// this is the plain rule "not ready while it would pass the limit", with one slot kept for the oldest.
/// `check` refuses limits below c, and limits where F and B of a job run on different workers.
///
/// Not thread-safe. The schedule must outlive the queue.
class WorkerQueue {
 public:
  WorkerQueue(const Schedule& schedule, int worker);

  /// `id` has all its inputs on this worker. Each job of the worker is pushed once.
  void push(JobId id);

  /// The job to start now, or nothing: no job is ready, or the discipline refuses those that are.
  [[nodiscard]] std::optional<JobId> pop();

  /// A popped job ended. May lift a refusal, so pop again after it.
  void finish(JobId id);

  /// Whether `id`, were it pushed now, would be among the next `most` jobs to start: those of the worker's
  /// order, or where the discipline picks, one of at most `most` that are ready.
  [[nodiscard]] bool is_near(JobId id, std::size_t most) const;
  /// Of the jobs that are near, those that are ready; where the discipline picks, those that it would pick
  /// first. O(most).
  [[nodiscard]] std::vector<JobId> ready_and_near(std::size_t most) const;

  /// Pushed and not yet popped.
  [[nodiscard]] std::size_t ready() const { return ready_count_; }
  /// Jobs of this worker that have not ended.
  [[nodiscard]] std::size_t unfinished() const { return unfinished_; }
  /// Stashes held now by jobs started here.
  [[nodiscard]] int live() const { return live_; }

 private:
  struct ByRank {
    const Schedule* schedule;
    bool operator()(JobId a, JobId b) const { return schedule->rank(a) > schedule->rank(b); }
  };
  using Heap = std::priority_queue<JobId, std::vector<JobId>, ByRank>;

  [[nodiscard]] std::optional<JobId> pop_ordered();
  [[nodiscard]] std::optional<JobId> pop_bounded();
  void prepare_bounded();
  void drop_taken(Heap& heap) const;
  void skip_finished();
  [[nodiscard]] bool keeps_stash(JobId id) const;

  const Schedule* schedule_;
  int worker_;
  std::size_t ready_count_ = 0;
  std::size_t unfinished_;
  int live_ = 0;

  // greedy: every ready job; bounded: those that are not forward passes.
  Heap heap_;

  // ordered: by position in the worker's order.
  std::vector<bool> is_ready_;
  std::size_t next_ = 0;

  // bounded
  int limit_ = 0;
  int reserve_ = 0;                 // c of the class comment
  std::size_t oldest_ = 0;          // index into the schedule's micro-batches by age
  std::vector<int> unfinished_of_;  // jobs left here, by micro-batch
  std::vector<int> held_;           // stashes held here, by micro-batch
  // A ready forward pass is in both of these; `taken_` (by position) marks those started through the
  // other one.
  std::vector<Heap> forward_of_;  // by micro-batch
  Heap forward_;
  std::vector<bool> taken_;
};

}  // namespace starpipe::plan
