// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/watchdog.hpp"

#include <algorithm>
#include <chrono>
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
constexpr double pause_of_others = 2;     // seconds that a higher rank gives the lowest one to end the run
constexpr double min_silence = 1.5;       // seconds; a rank that ends the run is silent for less
constexpr int timeouts_of_a_task = 10;
constexpr int silent_periods = 3;  // a rank whose last status is older than this many periods is silent

constexpr int status_tag = 0;
constexpr int bytes = sizeof(RankStatus);
static_assert(std::is_trivially_copyable_v<RankStatus>);

}  // namespace

Watchdog::Watchdog(double timeout, int rank, int ranks, WatchdogCalls calls)
    : timeout_(timeout),
      period_(std::clamp(timeout / 8, shortest_period, longest_period)),
      rank_(rank),
      calls_(std::move(calls)),
      statuses_(index(ranks)),
      received_at_(statuses_.size(), calls_.now()),
      last_progress_(calls_.now()),
      thread_([this](const std::stop_token& stop) { watch(stop); }) {}

void Watchdog::note(int rank, const RankStatus& status, double now) {
  RankStatus& before = statuses_[index(rank)];
  const double max = timeouts_of_a_task * timeout_;
  const bool runs = status.running >= 0 && status.running_for < max;
  const bool moves = status.transfer_for >= 0 && status.transfer_for < max;
  if (runs || moves || status.ended != before.ended || status.step != before.step ||
      status.evaluates != before.evaluates || status.phase != before.phase)
    last_progress_ = now;
  before = status;
  received_at_[index(rank)] = now;
}

bool Watchdog::is_silent(std::size_t rank, double now) const {
  return now - received_at_[rank] >= silent_periods * period_;
}

bool Watchdog::is_lost(std::size_t rank, double now) const {
  return is_silent(rank, now) && now - received_at_[rank] >= min_silence;
}

bool Watchdog::some_rank_is_silent(double now) const {
  for (std::size_t r = 0; r < received_at_.size(); ++r) {
    if (r != index(rank_) && is_silent(r, now)) return true;
  }
  return false;
}

// True if a lower rank is to end the run. Outside of steps a rank ends it only when some rank is silent, and
// a silent rank is silent for the lower ranks too. A rank that ends the run sends no status any more, for the
// moment until the launcher has ended all ranks. With a short timeout this moment is longer than the silence
// of a lost rank, so the lower rank must have been silent for longer than this moment.
bool Watchdog::lower_rank_ends_run(double now) const {
  if (now - last_progress_ > timeout_ + pause_of_others) return false;
  const bool silence = some_rank_is_silent(now);
  for (std::size_t r = 0; r < index(rank_); ++r) {
    if ((silence || statuses_[r].phase != StepPhase::outside) && !is_lost(r, now)) return true;
  }
  return false;
}

void Watchdog::end_run(double now) {
  std::vector<RankNews> news;
  for (std::size_t r = 0; r < statuses_.size(); ++r) news.push_back({statuses_[r], now - received_at_[r]});
  const RankStatus& mine = statuses_[index(rank_)];
  const NewsLimits limits{.silent = silent_periods * period_, .long_task = timeouts_of_a_task * timeout_};
  const std::string table = calls_.explain(news, limits);
  if (mine.phase == StepPhase::outside) {
    const std::string when =
        mine.step < 0 ? "before the first step" : fmt::format("after step {}", mine.step + 1);
    calls_.end_run(fmt::format(
        "a rank has been silent for more than {} s {} (runtime.timeout): it is lost or stopped. Who "
        "waits for whom:\n{}",
        timeout_, when, table));
    return;
  }
  calls_.end_run(fmt::format(
      "no rank has made progress for {} s in {} (runtime.timeout): a rank is lost or stuck, "
      "or a task or an emulated transfer lasts for more than ten timeouts. Who waits for whom:\n{}",
      timeout_, part_of_run(mine), table));
}

void Watchdog::watch(const std::stop_token& stop) {
  const std::chrono::duration<double> interval(std::min(period_, longest_interval));
  double send_at = 0;
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    wake_.wait_for(lock, stop, interval, [] { return false; });
    const double now = calls_.now();
    const RankStatus mine = calls_.status();
    note(rank_, mine, now);
    for (const auto& [rank, status] : calls_.receive()) note(rank, status, now);
    if (now >= send_at) {
      calls_.send(mine);
      send_at = now + period_;
    }
    if (mine.phase == StepPhase::outside && !some_rank_is_silent(now)) last_progress_ = now;
    if (now - last_progress_ < timeout_ || lower_rank_ends_run(now)) continue;
    end_run(now);
  }
}

StatusExchange::StatusExchange(const Mpi& mpi)
    : mpi_(mpi),
      sending_(index(mpi.ranks()), MPI_REQUEST_NULL),
      last_sent_(sending_.size()),
      sent_(sending_.size(), 0),
      received_(sending_.size(), 0) {
  if (mpi.ranks() > 1) MPI_Comm_dup(mpi.comm(), &comm_);
}

StatusExchange::~StatusExchange() {
  if (comm_ == MPI_COMM_NULL) return;
  const EndWatch watch(mpi_);
  mpi_.barrier();  // this wait sleeps; the calls below then return at once
  std::vector<std::uint64_t> to_me(sent_.size());
  MPI_Alltoall(sent_.data(), 1, MPI_UINT64_T, to_me.data(), 1, MPI_UINT64_T, comm_);
  for (std::size_t r = 0; r < to_me.size(); ++r) {
    while (received_[r] < to_me[r]) receive_from(static_cast<int>(r));
  }
  MPI_Waitall(static_cast<int>(sending_.size()), sending_.data(), MPI_STATUSES_IGNORE);
  MPI_Comm_free(&comm_);
}

void StatusExchange::send(const RankStatus& mine) {
  for (std::size_t r = 0; r < sending_.size(); ++r) {
    if (r == index(mpi_.rank())) continue;
    int taken = 1;
    // Not MPI_Test and MPI_Isend, by which the program knows StarPU-MPI's thread.
    PMPI_Test(&sending_[r], &taken, MPI_STATUS_IGNORE);
    if (taken == 0) continue;
    last_sent_[r] = mine;
    PMPI_Isend(&last_sent_[r], bytes, MPI_BYTE, static_cast<int>(r), status_tag, comm_, &sending_[r]);
    ++sent_[r];
  }
}

RankStatus StatusExchange::receive_from(int rank) {
  RankStatus status;
  MPI_Recv(&status, bytes, MPI_BYTE, rank, status_tag, comm_, MPI_STATUS_IGNORE);
  ++received_[index(rank)];
  return status;
}

std::vector<std::pair<int, RankStatus>> StatusExchange::receive() {
  std::vector<std::pair<int, RankStatus>> news;
  if (comm_ == MPI_COMM_NULL) return news;
  MPI_Status from;
  for (int is_there = 0;;) {
    MPI_Iprobe(MPI_ANY_SOURCE, status_tag, comm_, &is_there, &from);
    if (is_there == 0) return news;
    news.emplace_back(from.MPI_SOURCE, receive_from(from.MPI_SOURCE));
  }
}

RunWatch::RunWatch(const Session& session, double timeout, const Watched& first)
    : session_(session), now_(&first) {
  if (on_simgrid) return;
  exchange_.emplace(session.mpi());
  watchdog_.emplace(
      timeout, session.mpi().rank(), session.mpi().ranks(),
      WatchdogCalls{.status = [this] { return now_.load()->status(); },
                    .send = [this](const RankStatus& mine) { exchange_->send(mine); },
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
