// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace starpipe::runtime {

/// Owns a thread that ends a run in which no task finishes for too long: StarPU and MPI wait without end for
/// a rank that is lost or stuck. The thread that runs the steps calls `begin_step` and `end_step`, StarPU's
/// workers call `note_progress`.
class Watchdog {
 public:
  /// `timeout`: seconds without progress, during a step, after which the watchdog's thread calls `end_run`
  /// with a message of one line; `end_run` is called again and again unless it ends the process.
  Watchdog(double timeout, std::function<void(const std::string&)> end_run);

  /// The time counts from here until `end_step`: every wait for other ranks may be without end.
  void begin_step(int step);
  void end_step() { running_ = false; }
  /// A task has finished.
  void note_progress() { finished_.fetch_add(1, std::memory_order_relaxed); }

 private:
  void watch(const std::stop_token& stop);

  double timeout_;
  std::function<void(const std::string&)> end_run_;
  std::atomic<std::uint64_t> finished_ = 0;  // tasks
  std::atomic<bool> running_ = false;
  std::atomic<int> step_ = 0;
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::jthread thread_;  // last: it uses the other members
};

}  // namespace starpipe::runtime
