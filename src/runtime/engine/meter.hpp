// SPDX-License-Identifier: Apache-2.0
// Measurements of a step on one rank: when and where each job ran, the data that each worker received, and
// the stashes that it held. Stashes count on the worker that w names.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/engine/task_graph.hpp"
#include "starpipe/plan/simulate/timeline.hpp"
#include "starpipe/plan/simulate/transfers.hpp"

namespace starpipe::runtime {

/// When a task was inserted and ran: seconds on the clock of the rank that ran it.
struct TaskTimes {
  double submitted = 0;  ///< its insertion into StarPU began
  double ready = 0;      ///< all its inputs were on this rank, and StarPU was about to schedule it
  double start = 0;
  double end = 0;
};

/// One job as it ran, on a logical worker: a copy to another worker, on that one. Times are as in
/// `TaskTimes`. Records travel between ranks as bytes.
using JobRecord = plan::JobRun;
static_assert(std::is_trivially_copyable_v<JobRecord>);

/// The data that one worker received, and its peak of data held for backward passes. Plain data.
struct WorkerRecord {
  plan::Transfers received;
  int peak_stashes = 0;                ///< number of stashes
  std::uint64_t peak_stash_bytes = 0;  ///< as `plan::MemoryStep::bytes` counts them
  /// When the worker's last task ended that adds or copies a sum of weight gradients, as in `TaskTimes`; 0
  /// without such a task.
  double last_sum = 0;
};

/// Measures a step from the starts and ends of its tasks. Any thread may call any function at any time. Each
/// worker has a record with a mutex of its own, so that workers that run the tasks placed on them never wait
/// for each other; the records are merged when they are read.
class Meter {
 public:
  /// `local`: by logical worker, true if it belongs to this rank. The graph must outlive this.
  Meter(const TaskGraph& graph, int workers, const std::vector<bool>& local);

  /// Forgets the last step. Call it when no task runs.
  void reset();

  /// Call it when `task` starts on logical worker `worker`, which is of this rank, and its data are there.
  /// Returns the data that the worker had to receive, by their index in the graph.
  std::vector<std::size_t> start(const Task& task, int worker);
  /// Call it when the task has ended.
  void end(const Task& task, int worker, const TaskTimes& times);

  /// Returns the jobs that have ended, worker by worker; the jobs of one worker are in the order of their
  /// ends. Forgets them, so that the records of a long step are there only once.
  [[nodiscard]] std::vector<JobRecord> take_jobs();
  /// Returns the records by logical worker; empty records for workers of other ranks.
  [[nodiscard]] std::vector<WorkerRecord> workers() const;

 private:
  // A worker's copy of a datum that is kept for backward passes.
  struct Copy {
    int readers = 0;       // number of tasks on the worker that read it
    int readers_left = 0;  // number of these tasks that have not ended in this step
    bool held = false;
  };
  // A worker of this rank. Aligned to cache lines: no worker slows down another one's record.
  struct alignas(64) Worker {
    std::size_t placed_jobs = 0;  // number of jobs that the schedule places on it
    mutable std::mutex mutex;     // guards the members below
    std::vector<JobRecord> jobs;  // that it ran
    WorkerRecord record;
    std::vector<bool> has;                           // by datum
    std::unordered_map<std::uint32_t, Copy> copies;  // by datum; the constructor makes all of them
    int live = 0;                                    // stashes that it holds
    std::uint64_t live_bytes = 0;
  };

  // True if a task with this access holds the worker's copy for backward passes: every access to a stash
  // does, and of an activation the reads of F and R where R makes the stash.
  [[nodiscard]] bool keeps(const Task& task, const DataAccess& access) const;
  // Call these under the worker's mutex.
  // Notes that the worker has the datum. Returns true if it had to receive it.
  bool receive(const DataAccess& access, Worker& worker) const;
  static void hold(const Datum& datum, Copy& copy, Worker& worker);
  static void release(const Datum& datum, Copy& copy, Worker& worker);

  const TaskGraph& graph_;
  std::set<std::pair<int, int>> remade_;          // stage and micro-batch: R makes the stash
  std::vector<std::unique_ptr<Worker>> workers_;  // by logical worker; null for workers of other ranks
};

}  // namespace starpipe::runtime
