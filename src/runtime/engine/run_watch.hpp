// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <optional>

#include "runtime/session/session.hpp"
#include "runtime/engine/task_graph.hpp"
#include "runtime/engine/rank_status.hpp"
#include "runtime/engine/status_exchange.hpp"
#include "runtime/engine/watchdog.hpp"
#include "starpipe/plan/schedule/schedule.hpp"

namespace starpipe::runtime {

/// The tasks that a rank runs: those of the training's steps, or of an evaluation.
struct Watched {
  const TaskGraph& graph;
  const plan::Schedule& schedule;
  std::function<RankStatus()> status;  ///< of this rank; called by the watchdog's thread
};

/// Owns the watchdog of a run and the messages in which the ranks tell each other their status. All ranks are
/// watched together: a rank looks at a step while others still evaluate, or the other way round, only while
/// it waits for them. On SimGrid nothing is watched: a wait without end is a deadlock there, which SimGrid
/// reports at once.
class RunWatch {
 public:
  /// Collective. `first`: the tasks that run first. It, and what it names, must outlive this; the same holds
  /// for what `look_at` gets.
  RunWatch(const Session& session, double timeout, const Watched& first);

  /// From now on the rank's status is that of these tasks.
  void look_at(const Watched& tasks) { now_ = &tasks; }

 private:
  [[nodiscard]] WatchdogCalls calls();

  const Session& session_;
  std::atomic<const Watched*> now_;
  std::optional<StatusExchange> exchange_;
  std::optional<Watchdog> watchdog_;  // last: its thread uses the other members
};

}  // namespace starpipe::runtime
