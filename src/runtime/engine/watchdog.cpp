// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/watchdog.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <limits>
#include <span>
#include <string>
#include <type_traits>

#include <fmt/format.h>
#include <starpu.h>

#include "base/environment.hpp"
#include "runtime/host/agreement.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::runtime {

TaskProgress::TaskProgress(const TaskGraph& graph, const std::vector<bool>& local, bool evaluates)
    : graph_(graph), evaluates_(evaluates), local_(local), starts_(graph.tasks().size()) {}

void TaskProgress::enter(StepPhase phase, int step) {
  const std::scoped_lock lock(mutex_);
  phase_ = phase;
  step_ = step;
  if (phase != StepPhase::beginning) return;
  for (auto& start : starts_) start = not_started;
  first_ = 0;
}

void TaskProgress::start(const Task& task) {
  starts_[graph_.number_of(task)] = clock_seconds();
  ++started_;
}

void TaskProgress::end(const Task& task) {
  starts_[graph_.number_of(task)] = has_ended;
  ++ended_;
}

RankStatus TaskProgress::status() const {
  const std::scoped_lock lock(mutex_);
  RankStatus status{.phase = phase_, .step = step_, .evaluates = evaluates_ ? 1 : 0};
  // Reads `ended_` first. If a task starts and ends between the two reads, `runs` is true by mistake; the
  // loop below then finds no running task.
  status.ended = ended_;
  const bool runs = started_ != status.ended;
  if (phase_ != StepPhase::running) return status;
  while (first_ < starts_.size() && (!is_mine(first_) || starts_[first_] == has_ended)) ++first_;
  if (first_ == starts_.size()) return status;
  status.next = static_cast<std::int32_t>(first_);
  for (std::size_t t = first_; runs && t < starts_.size(); ++t) {
    const double start = starts_[t];
    if (start <= not_started) continue;
    status.running = static_cast<std::int32_t>(t);
    status.running_for = clock_seconds() - start;
    break;
  }
  return status;
}

namespace {

constexpr double shortest_period = 0.05;  // seconds
constexpr double longest_period = 5;
constexpr double longest_interval = 0.2;  // seconds between two checks
constexpr double pause_of_others = 2;     // seconds that a higher rank gives a lower one to end the run
constexpr double time_to_answer = 1.5;    // seconds; a rank that ends the run is silent for less
constexpr int timeouts_of_a_task = 10;
constexpr int silent_periods = 3;  // a rank whose last sign is older than this many periods is silent

constexpr int message_tag = 0;
constexpr int bytes = sizeof(WatchMessage);
static_assert(std::is_trivially_copyable_v<WatchMessage>);

}  // namespace

Watchdog::Watchdog(double timeout, int rank, int ranks, WatchdogCalls calls)
    : timeout_(timeout),
      period_(std::clamp(timeout / 8, shortest_period, longest_period)),
      silent_after_(silent_periods * period_),
      rank_(rank),
      ranks_(ranks),
      calls_(std::move(calls)),
      last_progress_(calls_.now()),
      last_calm_(last_progress_) {
  for (int distance = 1; distance < ranks; distance *= 2)
    expected_[(rank + ranks - distance) % ranks] = {.status = {}, .at = last_progress_};
  thread_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
}

void Watchdog::note(const RankStatus& mine, double now) {
  const double max = timeouts_of_a_task * timeout_;
  const bool runs = mine.running >= 0 && mine.running_for < max;
  const bool moves = mine.transfer_for >= 0 && mine.transfer_for < max;
  if (runs || moves || mine.ended != mine_.ended || mine.step != mine_.step ||
      mine.evaluates != mine_.evaluates || mine.phase != mine_.phase)
    last_progress_ = now;
  mine_ = mine;
}

void Watchdog::take(int from, const WatchMessage& message, double now) {
  last_progress_ = std::max(last_progress_, std::min(message.progress, now));
  if (const auto expected = expected_.find(from); expected != expected_.end())
    expected->second = {message.status, now};
  if (message.kind == Kind::question) {
    send(Kind::answer, from, now);
    if (from < rank_) not_before_ = now + time_to_answer + pause_of_others;
  }
  if (message.kind != Kind::answer || asked_at_ == 0) return;
  answers_[from] = {message.status, now};
  if (message.silent_rank < 0) return;
  const double heard = now - message.silent.age;
  const auto known = answers_.find(message.silent_rank);
  if (known == answers_.end() || known->second.age < heard)
    answers_[message.silent_rank] = {message.silent.status, heard};
}

void Watchdog::send(Kind kind, int to, double now) {
  WatchMessage message{
      .kind = kind, .progress = last_progress_, .status = mine_, .silent_rank = -1, .silent = {}};
  for (const auto& [rank, heard] : expected_) {
    if (!is_silent(rank, now) || silence(rank, now) <= message.silent.age) continue;
    message.silent_rank = rank;
    message.silent = {heard.status, silence(rank, now)};
  }
  calls_.send(to, message);
}

// News of progress travels on at once, since it may have far to go.
void Watchdog::send_signs(double now) {
  if (now < send_at_ && last_progress_ - sent_progress_ < period_ / 2) return;
  for (int distance = 1; distance < ranks_; distance *= 2) send(Kind::sign, (rank_ + distance) % ranks_, now);
  send_at_ = now + period_;
  sent_progress_ = last_progress_;
}

bool Watchdog::some_rank_is_silent(double now) const {
  return std::ranges::any_of(expected_, [&](const auto& heard) { return is_silent(heard.first, now); });
}

// Returns the seconds after the timeout when this rank may ask the others. A rank that ends the run sends no
// signs any more, for the moment until the launcher has ended all ranks. With a short timeout this moment is
// longer than the silence of a lost rank, so rank 0 must have been silent for longer than this moment.
double Watchdog::turn(double now) const {
  const auto first = expected_.find(0);
  const bool first_is_lost =
      first != expected_.end() && silence(0, now) >= std::max(silent_after_, time_to_answer);
  return pause_of_others *
         (static_cast<int>(std::bit_width(static_cast<unsigned>(rank_))) - (first_is_lost ? 1 : 0));
}

void Watchdog::ask(double now) {
  asked_at_ = now;
  answers_.clear();
  for (int rank = 0; rank < ranks_; ++rank) {
    if (rank != rank_) send(Kind::question, rank, now);
  }
}

// A rank whose signs do not come here is not waited for.
bool Watchdog::has_answers(double now) const {
  if (now - asked_at_ >= time_to_answer) return true;
  for (int rank = 0; rank < ranks_; ++rank) {
    const auto answer = answers_.find(rank);
    const bool answered = answer != answers_.end() && answer->second.age >= asked_at_;
    if (rank != rank_ && !answered && !(expected_.contains(rank) && is_silent(rank, now))) return false;
  }
  return true;
}

void Watchdog::end_run(double now) {
  std::vector<RankNews> news;
  for (int rank = 0; rank < ranks_; ++rank) {
    const auto answer = answers_.find(rank);
    if (rank == rank_) {
      news.push_back({mine_, 0});
    } else if (answer != answers_.end() && (answer->second.age >= asked_at_ || !expected_.contains(rank))) {
      const bool answered = answer->second.age >= asked_at_;
      news.push_back({answer->second.status, answered ? 0 : now - answer->second.age});
    } else if (expected_.contains(rank)) {
      news.push_back({expected_.at(rank).status, silence(rank, now)});
    } else {
      news.push_back({{}, std::numeric_limits<double>::infinity()});
    }
  }
  const NewsLimits limits{.silent = silent_after_, .long_task = timeouts_of_a_task * timeout_};
  const std::string table = calls_.explain(news, limits);
  if (mine_.phase == StepPhase::outside) {
    const std::string when =
        mine_.step < 0 ? "before the first step" : fmt::format("after step {}", mine_.step + 1);
    calls_.end_run(fmt::format(
        "a rank has been silent for more than {} s {} (runtime.timeout): it is lost or stopped. Who "
        "waits for whom:\n{}",
        timeout_, when, table));
    return;
  }
  calls_.end_run(fmt::format(
      "no rank has made progress for {} s in {} (runtime.timeout): a rank is lost or stuck, "
      "or a task or an emulated transfer lasts for more than ten timeouts. Who waits for whom:\n{}",
      timeout_, part_of_run(mine_), table));
}

void Watchdog::watch(const std::stop_token& stop) {
  const std::chrono::duration<double> interval(std::min(period_, longest_interval));
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    wake_.wait_for(lock, stop, interval, [] { return false; });
    const double now = calls_.now();
    note(calls_.status(), now);
    for (const auto& [from, message] : calls_.receive()) take(from, message, now);
    send_signs(now);
    if (mine_.phase == StepPhase::outside && !some_rank_is_silent(now)) last_calm_ = now;
    const double idle = now - std::max(last_progress_, last_calm_);
    if (idle < timeout_ || now < not_before_) {
      asked_at_ = 0;
      continue;
    }
    if (asked_at_ == 0 && idle >= timeout_ + turn(now)) ask(now);
    if (asked_at_ != 0 && has_answers(now)) end_run(now);
  }
}

StatusExchange::StatusExchange(const Session& session)
    : mpi_(session.mpi()), clock_offset_(session.clock_offset()) {
  if (mpi_.ranks() > 1) comm_ = duplicate(mpi_.comm());
}

// All messages are sent synchronously. So when all ranks have sent theirs, none is on its way any more.
StatusExchange::~StatusExchange() {
  if (comm_ == MPI_COMM_NULL) return;
  const EndWatch watch(mpi_);
  mpi_.barrier();  // this wait sleeps for longer than the waits below
  const auto finish = [this](MPI_Request& request) {
    for (int done = 0; MPI_Test(&request, &done, MPI_STATUS_IGNORE), done == 0;) {
      receive();
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  };
  for (auto& [to, sending] : sending_) finish(sending.request);
  MPI_Request all_sent = MPI_REQUEST_NULL;
  MPI_Ibarrier(comm_, &all_sent);
  finish(all_sent);
  MPI_Comm_free(&comm_);
}

void StatusExchange::send(int to, const WatchMessage& message) {
  Sending& sending = sending_[{to, message.kind}];
  int taken = 1;
  // Not MPI_Test and MPI_Isend, by which the program knows StarPU-MPI's thread.
  PMPI_Test(&sending.request, &taken, MPI_STATUS_IGNORE);
  if (taken == 0) return;
  sending.message = message;
  sending.message.progress += clock_offset_;
  MPI_Issend(&sending.message, bytes, MPI_BYTE, to, message_tag, comm_, &sending.request);
}

std::vector<std::pair<int, WatchMessage>> StatusExchange::receive() {
  std::vector<std::pair<int, WatchMessage>> news;
  if (comm_ == MPI_COMM_NULL) return news;
  MPI_Status from;
  for (int is_there = 0;;) {
    MPI_Iprobe(MPI_ANY_SOURCE, message_tag, comm_, &is_there, &from);
    if (is_there == 0) return news;
    WatchMessage message;
    MPI_Recv(&message, bytes, MPI_BYTE, from.MPI_SOURCE, message_tag, comm_, MPI_STATUS_IGNORE);
    message.progress -= clock_offset_;
    news.emplace_back(from.MPI_SOURCE, message);
  }
}

RunWatch::RunWatch(const Session& session, double timeout, const Watched& first)
    : session_(session), now_(&first) {
  if (on_simgrid) return;
  exchange_.emplace(session);
  watchdog_.emplace(
      timeout, session.mpi().rank(), session.mpi().ranks(),
      WatchdogCalls{.status = [this] { return now_.load()->status(); },
                    .send = [this](int to, const WatchMessage& message) { exchange_->send(to, message); },
                    .receive = [this] { return exchange_->receive(); },
                    .explain =
                        [this](std::span<const RankNews> news, const NewsLimits& limits) {
                          const Watched& now = *now_.load();
                          return wait_table(now.graph, now.schedule, session_.map(), news, limits);
                        },
                    .end_run = [this](const std::string& message) { session_.mpi().abort(message); }});
}

RunWatch::~RunWatch() {
  starpu_task_wait_for_all();
  session_.mpi().barrier();
}

}  // namespace starpipe::runtime
