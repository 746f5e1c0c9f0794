// SPDX-License-Identifier: Apache-2.0
// What a rank's workers really did in a step: when each job ran and where, what each worker received, and
// the stashes it held. Counted task by task as they run; stashes on the worker that w names.
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

/// What one worker received and held. Plain data.
struct WorkerRecord {
  plan::Transfers received;
  int peak_activations = 0;
  std::uint64_t peak_activation_bytes = 0;
};

/// Thread-safe.
class Meter {
 public:
  /// `local`: whether a logical worker belongs to this rank.
  Meter(const TaskGraph& graph, int workers, const std::vector<bool>& local);

  /// Forgets the last step.
  void reset();

  /// `task` starts on logical worker `worker`, with its data there. Returns how many of them the worker had
  /// to receive for it.
  int start(const Task& task, int worker);
  void end(const Task& task, int worker, double start_time, double end_time);

  [[nodiscard]] const std::vector<JobRecord>& jobs() const { return jobs_; }
  /// By logical worker; those of other ranks are empty.
  [[nodiscard]] const std::vector<WorkerRecord>& workers() const { return workers_; }

 private:
  // A copy on one worker of what is kept for backward passes.
  struct Copy {
    int worker;
    int readers;  // tasks here that read it
    int readers_left;
    bool held = false;
  };

  [[nodiscard]] bool keeps(const DataAccess& access) const;
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
  std::vector<std::vector<int>> on_;       // by datum: workers that have it, its writer first
  std::vector<std::vector<Copy>> copies_;  // by datum; only what is kept, on local workers
};

}  // namespace starpipe::runtime
