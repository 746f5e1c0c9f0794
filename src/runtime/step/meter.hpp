// SPDX-License-Identifier: Apache-2.0
// Measurements of a step on one rank: when and where each job ran, the data that each worker received, and
// the stashes that it held. Stashes count on the worker that w names.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "runtime/step/task_graph.hpp"
#include "starpipe/plan/simulate/transfers.hpp"

namespace starpipe::runtime {

/// One job as it ran. Plain data: it travels between ranks as bytes.
struct JobRecord {
  plan::JobId job;
  std::int32_t worker;  ///< logical
  double start;         ///< seconds on the clock of the rank that ran it
  double end;
};

/// The data that one worker received, and the most that it held for backward passes. Plain data.
struct WorkerRecord {
  plan::Transfers received;
  int peak_stashes = 0;                ///< number of stashes
  std::uint64_t peak_stash_bytes = 0;  ///< as `plan::MemoryStep::bytes` counts them
};

/// Measures a step from the starts and ends of its tasks. Thread-safe, except `jobs` and `workers`, which are
/// for the time between steps.
class Meter {
 public:
  /// `local`: whether a logical worker belongs to this rank.
  Meter(const TaskGraph& graph, int workers, const std::vector<bool>& local);

  /// Forgets the last step.
  void reset();

  /// Call it when `task` starts on logical worker `worker`, and its data are there. Returns how many of the
  /// data the worker had to receive.
  int start(const Task& task, int worker);
  /// Call it when the task has ended. Times are in seconds of this rank's clock.
  void end(const Task& task, int worker, double start_time, double end_time);

  [[nodiscard]] const std::vector<JobRecord>& jobs() const { return jobs_; }
  /// By logical worker; those of other ranks are empty.
  [[nodiscard]] const std::vector<WorkerRecord>& workers() const { return workers_; }

 private:
  // One worker's copy of a datum that is kept for backward passes.
  struct Copy {
    int worker;
    int readers;       // number of tasks on the worker that read it
    int readers_left;  // number of these tasks that have not ended in this step
    bool held = false;
  };

  // Whether a task with this access holds the worker's copy: all that access a stash, but only those that
  // read an activation.
  [[nodiscard]] bool keeps(const DataAccess& access) const;
  // Notes that the worker has the datum. Returns whether it had to receive it.
  bool receive(const DataAccess& access, int worker);
  void hold(std::size_t datum, Copy& copy);
  void release(std::size_t datum, Copy& copy);
  [[nodiscard]] std::uint64_t bytes(std::size_t datum) const {
    return graph_.data()[datum].size * sizeof(float);
  }

  const TaskGraph& graph_;
  std::mutex mutex_;
  std::vector<JobRecord> jobs_;
  std::vector<WorkerRecord> workers_;
  std::vector<int> live_;                  // stashes, by worker
  std::vector<std::uint64_t> live_bytes_;  // by worker
  std::vector<std::vector<int>> on_;       // by datum: workers that have it, the writer first
  std::vector<std::vector<Copy>> copies_;  // by datum, if kept for backward passes: copies on local workers
};

}  // namespace starpipe::runtime
