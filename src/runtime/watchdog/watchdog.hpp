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

#include "runtime/watchdog/rank_status.hpp"

namespace starpipe::runtime {

/// What the watchdog's thread calls.
struct WatchdogCalls {
  std::function<RankStatus()> status;           ///< of this rank
  std::function<void(const RankStatus&)> send;  ///< sends it to the other ranks
  std::function<std::vector<std::pair<int, RankStatus>>()>
      receive;  ///< others' statuses that have arrived since the last call, with their ranks
  /// A table for the message. `news`: [rank]; ranks without news for `silent_after` seconds are silent.
  std::function<std::string(std::span<const RankNews> news, double silent_after)> explain;
  /// Ends the run with the message. If it returns, the watchdog calls it again.
  std::function<void(const std::string&)> end_run;
};

/// Owns a thread that ends a run in which no rank makes progress for too long: StarPU and MPI wait without
/// end for a rank that is lost or stuck. A rank makes progress when a task ends there, and while a task runs,
/// for at most ten timeouts. The ranks send each other their status every eighth of a timeout or more often.
/// A rank whose status does not arrive counts as a rank without progress.
///
/// All ranks find the timeout exceeded at about the same time. The lowest rank that is in the step and not
/// silent ends the run with the message. A higher rank does so 2 seconds later, in case the lower one cannot.
class Watchdog {
 public:
  /// `timeout`: seconds without progress, during a step of this rank.
  Watchdog(double timeout, int rank, int ranks, WatchdogCalls calls);

 private:
  void watch(const std::stop_token& stop);
  void note(int rank, const RankStatus& status, double now);
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
