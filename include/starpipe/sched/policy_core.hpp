// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/worker_queue.hpp"

namespace starpipe::sched {

/// The scheduling policy `starpipe`, without StarPU: which of the tasks that are ready a worker runs next.
/// `starpu_policy.hpp` wraps it in the `struct starpu_sched_policy` that StarPU calls.
///
/// This comment is the contract between the two, and with anyone who writes another policy.
///
/// Tasks. A task is an opaque pointer. It is either a *job* of the schedule (pushed with its JobId, to the
/// worker that w(s,b,d) names), or *pinned* (to a worker, but no job: gradient reductions, optimizer
/// steps), or *free* (any worker that can run it: tasks of other libraries). A worker takes pinned tasks
/// first, since jobs wait for them or nothing else does, then what the discipline gives it among its
/// jobs, then free tasks.
///
/// Calling threads. `push` and `push_free` run on whatever thread made the task ready: the submitting
/// thread, the worker that finished its last predecessor, or the MPI thread on a message's arrival; many
/// at once. `pop(w)`, `start(w)` and `finish(w)` run on worker w's own thread. `begin` runs on the submitting
/// thread while no job is submitted and not finished.
///
/// Locks. Each worker's queue has a mutex of its own, and the free tasks have one. They are leaves: nothing
/// of StarPU is called and nothing else is locked while one is held, and each is held for O(log jobs).
/// So they may be taken from any StarPU callback without relaxing the worker first.
///
/// Progress. After a `push` that returns true, the caller must wake that worker, and after `push_free` and
/// `start` the one they name: StarPU loses no wake-up that follows the publication of a task. A free task
/// wakes one worker, of those that asked in vain and can run it. No task is forgotten by that: a worker that
/// is not idle asks again when it has ended its task, and an idle one that starts something else before it
/// came to the free task wakes another in its place (`start`). `pop` may return nothing though tasks are
/// queued (the discipline refuses them). What lifts a refusal is a push to the same worker or the end of
/// one of its own jobs, after which it pops again by itself; so no worker ever needs to wake another
/// because of a refusal. That some worker can always go on is proved before the run by `plan::check`.
/// A worker that got nothing may `wait` for the next push instead of asking again: StarPU never lets the
/// last awake worker of a process sleep, blocking drivers or not, and with one worker a rank that one would
/// spin on a core that another rank needs. `push` wakes a worker that waits, which needs no wake-up by
/// StarPU: two of StarPU's locks a task.
///
/// Ownership. The core owns no task; it forgets a task when `pop` returns it. `begin` keeps a reference to
/// the schedule, which must outlive the last `finish` before the next `begin`.
class PolicyCore {
 public:
  using Task = void*;
  /// Whether `worker` can run a free task. Called under the lock of the free tasks; must not block.
  using CanRun = bool (*)(Task task, int worker);

  /// For workers 0 .. workers-1.
  PolicyCore(int workers, CanRun can_run);

  /// Starts a run of all jobs of `schedule`. `logical[w]` is the schedule's worker that worker w is; -1 if
  /// none. Throws std::logic_error when jobs of the previous run have not finished.
  void begin(const plan::Schedule& schedule, std::span<const int> logical);

  /// Tasks whose inputs `worker`, which has a memory of its own, should fetch now: those of the next
  /// `fetched_ahead` jobs in line, weights included (the second thread of source 000's appendix), and pinned
  /// tasks. `fetch_before_push`: whether a task that is about to be pushed is one; afterwards it is not the
  /// caller's to look at. `to_fetch`, on the worker's own thread after `pop`: those that came into line
  /// since. Each job is named once.
  [[nodiscard]] bool fetch_before_push(int worker, std::optional<plan::JobId> job);
  [[nodiscard]] std::vector<Task> to_fetch(int worker);
  static constexpr std::size_t fetched_ahead = 2;

  /// Returns whether the caller must wake the worker.
  bool push(int worker, Task task, std::optional<plan::JobId> job);
  /// Larger priorities first, as StarPU's. Returns the worker to wake, or none.
  [[nodiscard]] std::optional<int> push_free(Task task, int priority);
  /// The task that `worker` starts now, or null: then it is idle until the next `start`.
  Task pop(int worker);
  /// `worker` starts a task, which it has from `pop` or from elsewhere (StarPU gives a worker tasks that
  /// name it without asking us). Returns the worker to wake, or none.
  [[nodiscard]] std::optional<int> start(int worker);
  /// Waits until something is pushed that `worker` may run, at most `most`: at first awake, yielding the core
  /// to whoever wants it, then asleep. On the worker's own thread, in a state in which others may push to it
  /// (starpu_worker_relax_on).
  void wait(int worker, std::chrono::microseconds most);
  /// A job that `pop(worker)` returned has ended on that worker.
  void finish(int worker, plan::JobId job);

 private:
  struct Worker {
    std::mutex mutex;
    std::condition_variable pushed;
    std::atomic<bool> was_pushed = false;  // since the last pop
    std::atomic<bool> waits = false;       // is in `wait`
    bool was_idle = false;                 // since the last start; its own thread's
    std::vector<Task> pinned;              // in order of arrival, from `next_pinned`
    std::size_t next_pinned = 0;
    std::optional<plan::WorkerQueue> queue;
    std::vector<Task> task_of;  // by the job's position in the worker's order
    std::vector<bool> fetched;  // likewise: named to be fetched ahead
  };

  std::optional<int> take_idle(Task task);
  void notify(int worker);

  const plan::Schedule* schedule_ = nullptr;
  std::vector<std::unique_ptr<Worker>> workers_;  // a mutex does not move
  CanRun can_run_;
  std::mutex free_mutex_;  // of the rest
  std::multimap<int, Task, std::greater<>> free_;
  std::vector<int> idle_;  // that asked in vain and were not named to be woken since
};

}  // namespace starpipe::sched
