// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/worker_queue.hpp"

namespace starpipe::sched {

/// The scheduling policy `starpipe`, without StarPU: decides which ready task a worker runs next.
/// `starpu_policy.hpp` wraps it in the `struct starpu_sched_policy` that StarPU calls.
///
/// This comment is the contract between the two, and with anyone who writes another policy.
///
/// Workers. A worker is StarPU's here, by StarPU's number. `begin` says which worker of the schedule each of
/// them carries.
///
/// Tasks. A task is an opaque pointer. It is either a *job* of the schedule (pushed with its JobId, to the
/// worker that carries w(s,b,d)), or *pinned* (to a worker, but no job: gradient reductions, optimizer steps,
/// and the tasks of a program with a w and an n of its own), or *free* (any worker that can run it: tasks of
/// other libraries). A worker takes pinned tasks without an n first, since jobs may wait for them, then the
/// job that the discipline picks, then pinned tasks with an n, then free tasks. A pinned task
/// without an n whose inputs are on their way is left until they have arrived, or until the worker has no
/// more jobs in the run and no other such task. (The driver of a GPU pops again when they arrive.) The other
/// pinned tasks without an n run in the order in which they were pushed. Pinned tasks with an n run in the
/// order of n, the smallest first; those with the same n run in the order in which they were pushed.
///
/// Calling threads. `push` and `push_free` run on the thread that made the task ready: the submitting thread,
/// the worker that finished the task's last predecessor, or the MPI thread when a message arrives. Many
/// threads may push at once. `pop(w)`, `to_fetch(w)`, `start(w)`, `wait(w)` and `finish(w)` run on worker w's
/// own thread. `begin` runs on the submitting thread, when all jobs submitted before have finished.
///
/// Locks. Each worker's queue has a mutex of its own, and the free tasks have one. They are leaves: while one
/// is held, no other mutex is locked and no code of StarPU or of a user runs. A worker's mutex is held for
/// O(log tasks), where tasks are its jobs or its queued pinned tasks with an n, and for a pass over those
/// without an n, which are few (in `begin` for O(jobs)). The mutex of the free tasks is held for a pass over
/// these tasks and the idle workers. So they may be locked in any StarPU callback
/// without relaxing the worker first.
///
/// Wake-ups. The caller must wake the worker when `push` returns true, and the worker that `push_free` or
/// `start` returns. StarPU loses no wake-up that follows the publication of a task. A free task wakes one
/// worker, which is idle and can run it. No free task is forgotten: when this worker starts another task
/// before it pops the free one, `start` names another idle worker; and a busy worker pops again when its task
/// has ended.
///
/// Refusals. `pop` may return null though jobs are queued, because the discipline refuses them. Only a
/// push to the same worker or the end of one of its own jobs lifts a refusal, and after both the worker pops
/// again. So a refusal never makes it necessary to wake another worker. `plan::check` proves before the run
/// that some worker can always continue.
///
/// Waiting. A worker that got nothing may `wait` for the next push instead of popping again and again. StarPU
/// never lets the last awake worker of a process sleep, even with blocking drivers. So where a rank has one
/// worker, the worker would spin on a core that another rank needs. `push` itself wakes a worker that is in
/// `wait`; the caller then need not, which saves two of StarPU's locks for each task.
///
/// Errors. Throws std::logic_error when a job is pushed to, or finished on, a worker that has no jobs in the
/// run, and std::out_of_range for a push to a worker that does not exist. Both are bugs of the caller.
///
/// Ownership. PolicyCore owns no task; it forgets a task when `pop` returns it. `begin` keeps a reference to
/// the schedule, which must live until all its jobs have finished.
class PolicyCore {
 public:
  using Task = void*;
  /// Returns true if `worker` can run a free task. `push_free` calls it once for each worker, on its own
  /// thread, before the task is queued and while no lock is held.
  using CanRun = bool (*)(Task task, int worker);
  /// Returns true if inputs of a pinned task are on their way to `worker`. They must arrive: a task for which
  /// this always holds may never run. `pop` calls it on the worker's thread, while no lock is held.
  using AwaitsInputs = bool (*)(Task task, int worker);

  /// For workers 0 .. workers-1. `can_run` is called for these workers only. Without `awaits_inputs` all
  /// inputs count as there.
  PolicyCore(int workers, CanRun can_run, AwaitsInputs awaits_inputs = nullptr);

  /// Starts a run of all jobs of `schedule`. `logical[w]`: the worker of the schedule whose jobs worker w
  /// runs; -1 if it runs none. Throws std::logic_error, and changes nothing, when jobs of the previous run
  /// have not finished.
  void begin(const plan::Schedule& schedule, std::span<const int> logical);

  /// The n of a pinned task that is pushed without one.
  static constexpr std::int64_t no_n = std::numeric_limits<std::int64_t>::min();

  // A worker with memory of its own (a GPU) fetches the inputs of tasks ahead, weights included (the second
  // thread of the appendix of Unifying Schemes): for all pinned tasks without an n, the next pinned
  // task with one, and its next `fetched_ahead` jobs. `fetch_before_push` and `to_fetch` together name
  // each task at most once.
  static constexpr std::size_t fetched_ahead = 2;
  /// Returns true if the caller, which is about to push a task with these arguments, must fetch its inputs.
  /// The caller asks, and begins to fetch, before `push`: after it another thread may run and destroy the
  /// task.
  [[nodiscard]] bool fetch_before_push(int worker, std::optional<plan::JobId> job, std::int64_t n = no_n);
  /// Returns the pushed tasks whose inputs should be fetched now: jobs that have come among the next
  /// `fetched_ahead`, and the pinned task that comes next. Call it after `pop`.
  [[nodiscard]] std::vector<Task> to_fetch(int worker);

  /// Queues a job, or without `job` a pinned task, whose n is any 64-bit number; smaller comes first. (The n
  /// of a job is its schedule's; the argument is not used.) Returns true if the caller must wake the worker.
  bool push(int worker, Task task, std::optional<plan::JobId> job, std::int64_t n = no_n);
  /// Queues a free task. Larger priorities come first, as StarPU's. Returns the worker to wake, or nullopt.
  [[nodiscard]] std::optional<int> push_free(Task task, int priority);
  /// Returns the task that `worker` starts now, or null: then the worker is idle until its next `start`.
  Task pop(int worker);
  /// Notes that `worker` starts a task, from `pop` or from StarPU itself: StarPU gives a worker tasks that
  /// name the worker without asking the policy. Returns the worker to wake, or nullopt.
  [[nodiscard]] std::optional<int> start(int worker);
  /// `idle`: `wait` calls it first, on the worker's thread, while no lock is held. Null: nothing is called.
  void call_when_idle(void (*idle)()) { when_idle_ = idle; }
  /// Where many workers share a core: `wait` yields for a `factor`-th of the usual time, and waits for
  /// `factor` times as long.
  void be_patient(int factor) { patience_ = factor; }
  /// Waits until a task is pushed that `worker` may run, for at most `max`, and returns false if none was. At
  /// first the thread yields its core in a loop, then it sleeps. Other threads must be able to push to the
  /// worker meanwhile: call it after starpu_worker_relax_on().
  bool wait(int worker, std::chrono::microseconds max);
  /// Notes that a job that `pop(worker)` returned has ended.
  void finish(int worker, plan::JobId job);

 private:
  struct PinnedTask {  // with an n
    std::int64_t n;
    std::uint64_t arrival;  // number of such tasks that were pushed to the worker before this one
    Task task;
    bool fetched;  // true if the task was named to be fetched
    bool operator>(const PinnedTask& other) const {
      return n != other.n ? n > other.n : arrival > other.arrival;
    }
  };

  struct Worker {
    std::mutex mutex;
    std::condition_variable pushed;
    std::atomic<bool> was_pushed = false;  // since the last pop
    std::atomic<bool> waits = false;       // true while the worker is in `wait`
    bool was_idle = false;           // `pop` gave null since the last start; for the worker's thread only
    std::deque<Task> without_n;      // pinned tasks without an n
    std::vector<PinnedTask> pinned;  // pinned tasks with an n: a heap, whose first element runs next
    std::uint64_t arrivals = 0;      // number of pinned tasks with an n pushed so far
    std::optional<plan::WorkerQueue> queue;  // nullopt once all jobs of the run have finished
    std::vector<Task> task_of;               // by the job's position in the worker's order
    std::vector<bool> fetched;               // by the same position: true if the job was named to be fetched
  };

  struct FreeTask {
    Task task;
    std::vector<bool> can_run;  // by worker
  };

  /// Returns the queue of a worker that has jobs in this run. Call it under the worker's mutex.
  static plan::WorkerQueue& queue_of(Worker& worker);
  /// Returns the first pinned task without an n that awaits no inputs, or null. On the worker's thread,
  /// without its mutex.
  Task find_without_wait(int worker_id);
  /// Takes from `idle_` the worker that became idle last among those that can run the task. Call it under
  /// `free_mutex_`.
  std::optional<int> take_idle(const FreeTask& task);
  /// Ends the worker's `wait`.
  void notify(int worker);

  const plan::Schedule* schedule_ = nullptr;
  std::atomic<void (*)()> when_idle_ = nullptr;
  std::atomic<int> patience_ = 1;
  std::vector<std::unique_ptr<Worker>> workers_;  // a mutex does not move
  CanRun can_run_;
  AwaitsInputs awaits_inputs_;
  std::mutex free_mutex_;                              // guards the members below
  std::multimap<int, FreeTask, std::greater<>> free_;  // by priority
  std::vector<int> idle_;  // idle workers: `pop` returned null to them, and no wake-up has named them since;
                           // the most recent is last
};

}  // namespace starpipe::sched
