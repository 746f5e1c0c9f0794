// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/watchdog.hpp"

#include <algorithm>
#include <chrono>

#include <fmt/format.h>

#include "runtime/host/clock.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::runtime {
namespace {

constexpr double shortest_period = 0.05;  // seconds
constexpr double longest_period = 5;
constexpr double longest_interval = 0.2;  // seconds between two checks
constexpr double pause_of_others = 2;     // seconds that a higher rank gives the lowest one to end the run
constexpr double least_silence = 1.5;     // seconds; a rank that ends the run is silent for less
constexpr int timeouts_of_a_task = 10;
constexpr int silent_periods = 3;  // a rank whose last status is older than this many periods is silent

}  // namespace

Watchdog::Watchdog(double timeout, int rank, int ranks, WatchdogCalls calls)
    : timeout_(timeout),
      period_(std::clamp(timeout / 8, shortest_period, longest_period)),
      rank_(rank),
      calls_(std::move(calls)),
      statuses_(index(ranks)),
      received_at_(statuses_.size(), clock_seconds()),
      last_progress_(clock_seconds()),
      thread_([this](const std::stop_token& stop) { watch(stop); }) {}

void Watchdog::note(int rank, const RankStatus& status, double now) {
  RankStatus& before = statuses_[index(rank)];
  const double most = timeouts_of_a_task * timeout_;
  const bool runs = status.running >= 0 && status.running_for < most;
  const bool moves = status.transfer_for >= 0 && status.transfer_for < most;
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
  return is_silent(rank, now) && now - received_at_[rank] >= least_silence;
}

bool Watchdog::some_rank_is_silent(double now) const {
  for (std::size_t r = 0; r < received_at_.size(); ++r) {
    if (r != index(rank_) && is_silent(r, now)) return true;
  }
  return false;
}

// Whether a lower rank is to end the run. Outside of steps a rank ends it only when some rank is silent, and
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
    const double now = clock_seconds();
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

}  // namespace starpipe::runtime
