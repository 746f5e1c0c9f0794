// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/engine/rank_status.hpp"

namespace starpipe::runtime {

/// What the watchdog's thread calls.
struct WatchdogCalls {
  std::function<RankStatus()> status;           ///< of this rank
  std::function<void(const RankStatus&)> send;  ///< sends it to the other ranks
  std::function<std::vector<std::pair<int, RankStatus>>()>
      receive;  ///< others' statuses that have arrived since the last call, with their ranks
  /// A table for the message. `news`: [rank].
  std::function<std::string(std::span<const RankNews> news, const NewsLimits& limits)> explain;
  /// Ends the run with the message. If it returns, the watchdog calls it again.
  std::function<void(const std::string&)> end_run;
};

/// Owns a thread that ends a run in which no rank makes progress for too long: StarPU and MPI wait without
/// end for a rank that is lost or stuck. A rank makes progress when a task ends there, and while a task runs
/// or an emulated transfer is under way, for at most ten timeouts. The ranks send each other their status
/// every eighth of a timeout or more often. A rank whose status does not arrive counts as a rank without
/// progress. Outside of steps, where a rank may work for long without tasks (it writes files, or gathers the
/// weights), only silent ranks count.
///
/// All ranks find the timeout exceeded at about the same time. The lowest rank that finds so and is not
/// silent ends the run with the message. A higher rank does so 2 seconds later, in case the lower one cannot.
class Watchdog {
 public:
  /// `timeout`: seconds without progress, or outside of steps with a silent rank.
  Watchdog(double timeout, int rank, int ranks, WatchdogCalls calls);

 private:
  void watch(const std::stop_token& stop);
  void note(int rank, const RankStatus& status, double now);
  [[nodiscard]] bool is_silent(std::size_t rank, double now) const;
  [[nodiscard]] bool is_lost(std::size_t rank, double now) const;
  [[nodiscard]] bool some_rank_is_silent(double now) const;
  [[nodiscard]] bool lower_rank_ends_run(double now) const;
  void end_run(double now);

  double timeout_;
  double period_;  // seconds between messages of a rank
  int rank_;
  WatchdogCalls calls_;
  std::vector<RankStatus> statuses_;  // by rank: the last that has arrived
  std::vector<double> received_at_;   // by rank: when it arrived
  double last_progress_;              // of any rank
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::jthread thread_;  // last: it uses the other members
};

}  // namespace starpipe::runtime
