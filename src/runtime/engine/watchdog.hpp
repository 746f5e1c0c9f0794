// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <mpi.h>

#include "runtime/engine/task_graph.hpp"
#include "runtime/host/clock.hpp"
#include "runtime/host/mpi.hpp"
#include "runtime/host/worker_map.hpp"
#include "runtime/session/session.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/schedule/schedule.hpp"

namespace starpipe::runtime {

/// The parts of a step, as a rank goes through them.
enum class StepPhase : std::int32_t {
  outside,    ///< between two steps, or before the first
  beginning,  ///< it waits for all ranks to begin the step
  running,    ///< its tasks run
  ending,     ///< its tasks have ended; it waits for the other ranks and their results
};

/// Holds what a rank tells the others of its work. Plain data, sent as bytes. A task is an index into the
/// graph's tasks; -1: none.
struct RankStatus {
  StepPhase phase = StepPhase::outside;
  std::int32_t step = -1;     ///< from 0; the last one when `outside`
  std::int32_t next = -1;     ///< the rank's first task, in the graph's order, that has not ended
  std::int32_t running = -1;  ///< the first of its tasks that runs
  double running_for = 0;     ///< seconds since that task started
  double transfer_for = -1;  ///< seconds since the oldest emulated transfer under way started; negative: none
  /// 1 if this is about the evaluation after step `step` (-1 there: before the first step), else 0.
  std::int32_t evaluates = 0;
  std::uint64_t ended = 0;  ///< number of tasks that have ended since the start of the run
};

/// Returns "step 3", "the evaluation after step 3" or "the evaluation before the first step".
inline std::string part_of_run(const RankStatus& status) {
  if (status.evaluates == 0) return "step " + std::to_string(status.step + 1);
  return status.step < 0 ? "the evaluation before the first step"
                         : "the evaluation after step " + std::to_string(status.step + 1);
}

/// The latest status of a rank that another rank knows.
struct RankNews {
  RankStatus status;
  double age = 0;  ///< seconds since it arrived; infinite: no status is known, and the rank does not answer
};

/// A message between the watchdogs of two ranks. Plain data, sent as bytes.
struct WatchMessage {
  enum class Kind : std::int32_t {
    sign,      ///< the sender lives; sent at regular times to a few ranks
    question,  ///< the sender finds that no rank makes progress, and asks for the receiver's status
    answer,
  };
  Kind kind = Kind::sign;
  double progress = 0;  ///< time of the last progress, of any rank, that the sender knows of; by the clock of
                        ///< the rank that reads this, rank 0's while the message travels
  RankStatus status;    ///< of the sender
  /// Names the rank that has been silent for longest among those whose signs the sender expects; -1: none is
  /// silent.
  std::int32_t silent_rank = -1;
  RankNews silent;  ///< its last status
};

/// Limits of the watchdog, in seconds.
struct NewsLimits {
  double silent = 0;     ///< a rank whose last status is older is silent
  double long_task = 0;  ///< a task or an emulated transfer that lasts longer does not count as progress
};

/// Owns the record of which tasks of this rank run and which have ended. The thread that runs the steps calls
/// `enter`, StarPU's workers call `start` and `end`, and any one other thread calls `status`.
class TaskProgress {
 public:
  /// `local`: by logical worker, true if it belongs to this rank. `evaluates`: the graph is an evaluation.
  /// The graph must outlive this.
  TaskProgress(const TaskGraph& graph, const std::vector<bool>& local, bool evaluates = false);

  /// The rank enters a part of step `step`. `beginning` forgets the tasks of the step before.
  void enter(StepPhase phase, int step);
  /// Call it when a task of this rank starts.
  void start(const Task& task);
  /// Call it when a task of this rank has ended.
  void end(const Task& task);

  [[nodiscard]] RankStatus status() const;

 private:
  [[nodiscard]] bool is_mine(std::size_t task) const { return local_[index(graph_.tasks()[task].worker)]; }

  static constexpr double not_started = 0;
  static constexpr double has_ended = -1;

  const TaskGraph& graph_;
  bool evaluates_;
  std::vector<bool> local_;                  // by logical worker: true if it belongs to this rank
  std::vector<std::atomic<double>> starts_;  // by task: clock_seconds() of its start, or a constant above
  std::atomic<std::uint64_t> started_ = 0;
  std::atomic<std::uint64_t> ended_ = 0;
  mutable std::mutex mutex_;  // of the members below
  StepPhase phase_ = StepPhase::outside;
  int step_ = -1;
  mutable std::size_t first_ = 0;  // all tasks of this rank before this one have ended
};

/// Functions that the watchdog's thread calls.
struct WatchdogCalls {
  std::function<RankStatus()> status;  ///< of this rank
  std::function<void(int to, const WatchMessage&)> send;
  std::function<std::vector<std::pair<int, WatchMessage>>()>
      receive;  ///< messages that have arrived since the last call, with their senders
  /// A table for the message. `news`: [rank].
  std::function<std::string(std::span<const RankNews> news, const NewsLimits& limits)> explain;
  /// Ends the run with the message. If it returns, the watchdog calls it again.
  std::function<void(const std::string&)> end_run;
  std::function<double()> now = clock_seconds;
};

/// Owns a thread that ends a run in which no rank makes progress for too long: StarPU and MPI wait without
/// end for a rank that is lost or stuck. A rank makes progress when a task ends there, and while a task runs
/// or an emulated transfer is under way, for at most ten timeouts. Every eighth of a timeout, or more often,
/// a rank sends a sign to the ranks that are 1, 2, 4, 8, ... ranks after it. The sign says when some rank has
/// made progress, so each rank knows it after few signs. Outside of steps, where a rank may work for long
/// without tasks (it writes files, or gathers the weights), a rank only looks for signs that do not come.
///
/// A rank that finds the timeout exceeded asks all ranks for their status, and ends the run with the message
/// when all have answered, or 1.5 seconds later. All ranks find it exceeded at about the same time: rank 0
/// asks at once, rank 1 2 seconds later, ranks 2 and 3 4 seconds later, and so on. So a higher rank asks only
/// if the lower ones cannot. A rank that a lower rank has asked leaves it to that rank for some seconds.
class Watchdog {
 public:
  /// `timeout`: seconds without progress, or outside of steps with a silent rank.
  Watchdog(double timeout, int rank, int ranks, WatchdogCalls calls);

 private:
  /// The last status of a rank, and when it arrived.
  struct Heard {
    RankStatus status;
    double at = 0;
  };
  using Kind = WatchMessage::Kind;

  void watch(const std::stop_token& stop);
  void note(const RankStatus& mine, double now);
  void take(int from, const WatchMessage& message, double now);
  void send(Kind kind, int to, double now);
  void send_signs(double now);
  [[nodiscard]] double silence(int rank, double now) const { return now - expected_.at(rank).at; }
  [[nodiscard]] bool is_silent(int rank, double now) const { return silence(rank, now) >= silent_after_; }
  [[nodiscard]] bool some_rank_is_silent(double now) const;
  [[nodiscard]] double turn(double now) const;
  void ask(double now);
  [[nodiscard]] bool has_answers(double now) const;
  void end_run(double now);

  double timeout_;
  double period_;        // seconds between signs of a rank
  double silent_after_;  // seconds without a sign
  int rank_;
  int ranks_;
  WatchdogCalls calls_;
  RankStatus mine_;
  std::map<int, Heard> expected_;  // by rank: the ranks whose signs come here
  double last_progress_;           // of any rank
  double last_calm_;               // outside of steps, and no rank was silent
  double send_at_ = 0;
  double sent_progress_ = 0;         // `last_progress_` when the last signs were sent
  double asked_at_ = 0;              // when this rank asked the others; 0: it does not ask
  double not_before_ = 0;            // a lower rank ends the run until then
  std::map<int, RankNews> answers_;  // by rank; `age` is the time of arrival
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::jthread thread_;  // last: it uses the other members
};

/// The watchdogs' messages, on a communicator of their own. One thread calls the member functions. They never
/// wait for another rank, so a rank that is lost or stopped delays no other rank.
class StatusExchange {
 public:
  /// Collective. `session` must outlive this.
  explicit StatusExchange(const Session& session);
  /// Collective. Receives the messages that are still on their way.
  ~StatusExchange();
  StatusExchange(const StatusExchange&) = delete;
  StatusExchange& operator=(const StatusExchange&) = delete;

  /// Sends the message, unless the receiver has not taken the previous one of this kind.
  void send(int to, const WatchMessage& message);
  /// Returns the messages that have arrived since the last call, with their senders, in the order of arrival.
  std::vector<std::pair<int, WatchMessage>> receive();

 private:
  struct Sending {
    MPI_Request request = MPI_REQUEST_NULL;
    WatchMessage message;
  };

  const Mpi& mpi_;
  double clock_offset_;                                            // to rank 0's clock
  MPI_Comm comm_ = MPI_COMM_NULL;                                  // none when there is one rank
  std::map<std::pair<int, WatchMessage::Kind>, Sending> sending_;  // by receiver
};

/// The tasks that a rank runs, of the training's steps or of an evaluation.
struct Watched {
  const TaskGraph& graph;
  const plan::Schedule& schedule;
  std::function<RankStatus()> status;  ///< of this rank; called by the watchdog's thread
};

/// Owns the watchdog of a run and the messages in which the ranks tell each other their status. All ranks are
/// watched together: a rank looks at a step while others still evaluate, or the other way round, only while
/// it waits for them. It does not watch runs on SimGrid, which reports a wait without end at once.
class RunWatch {
 public:
  /// Collective. `first`: the tasks that run first. It, and what it names, must outlive this; the same holds
  /// for what `look_at` gets.
  RunWatch(const Session& session, double timeout, const Watched& first);
  /// Collective. Waits for all tasks of this rank, then for the other ranks, which may work for long, for
  /// instance write files. The watchdog is on until then.
  ~RunWatch();
  RunWatch(const RunWatch&) = delete;
  RunWatch& operator=(const RunWatch&) = delete;

  /// From now on the rank's status is about these tasks.
  void look_at(const Watched& tasks) { now_ = &tasks; }

 private:
  const Session& session_;
  std::atomic<const Watched*> now_;
  std::optional<StatusExchange> exchange_;
  std::optional<Watchdog> watchdog_;  // last: its thread uses the other members
};

/// Returns a table of who waits for whom in a step without progress, with a line per rank: its activity, its
/// next task, the datum that this task misses, the rank that sends the datum, and that rank's activity. The
/// last line has no end of line. `news`: [rank].
std::string wait_table(const TaskGraph& graph, const plan::Schedule& schedule, const WorkerMap& map,
                       std::span<const RankNews> news, const NewsLimits& limits);

}  // namespace starpipe::runtime
