// SPDX-License-Identifier: Apache-2.0
// Watchdogs of 16 ranks, with a clock and a network of their own.
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/engine/watchdog.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::runtime {
namespace {

using namespace std::chrono_literals;

/// Watchdogs of many ranks, which send each other messages.
class ManyRanks {
 public:
  ManyRanks(int ranks, double timeout) : places_(index(ranks)) {
    for (int rank = 0; rank < ranks; ++rank) {
      places_[index(rank)].status = {.phase = StepPhase::running, .step = 2};
      watchdogs_.push_back(std::make_unique<Watchdog>(timeout, rank, ranks, calls(rank)));
    }
  }
  /// Lets so many seconds of the watchdogs' clock pass, and waits until news of all ranks have reached all.
  void pass(double seconds) {
    now_ = now_ + seconds;
    std::vector<int> before;
    for (const Place& place : places_) before.push_back(place.checks);
    for (std::size_t rank = 0; rank < places_.size(); ++rank) {
      while (places_[rank].checks < before[rank] + 5) std::this_thread::sleep_for(1ms);
    }
  }
  void change(int rank, const auto& how) {
    const std::scoped_lock lock(mutex_);
    how(places_[index(rank)].status);
  }
  void stop(int rank) { places_[index(rank)].is_stopped = true; }
  [[nodiscard]] int sent(int rank) const { return places_[index(rank)].sent; }
  /// The ranks that have ended the run.
  std::set<int> ended() {
    const std::scoped_lock lock(mutex_);
    return ended_;
  }
  std::vector<RankNews> news() {
    const std::scoped_lock lock(mutex_);
    return news_;
  }

 private:
  struct Place {
    RankStatus status;
    std::vector<std::pair<int, WatchMessage>> arrived;
    std::atomic<int> checks = 0;
    std::atomic<int> sent = 0;
    std::atomic<bool> is_stopped = false;
  };
  WatchdogCalls calls(int rank) {
    Place& mine = places_[index(rank)];
    return {.status =
                [&] {
                  ++mine.checks;
                  const std::scoped_lock lock(mutex_);
                  return mine.status;
                },
            .send =
                [&, rank](int to, const WatchMessage& message) {
                  if (mine.is_stopped) return;
                  ++mine.sent;
                  const std::scoped_lock lock(mutex_);
                  places_[index(to)].arrived.emplace_back(rank, message);
                },
            .receive = [&]() -> std::vector<std::pair<int, WatchMessage>> {
              if (mine.is_stopped) return {};
              const std::scoped_lock lock(mutex_);
              return std::exchange(mine.arrived, {});
            },
            .explain =
                [&](std::span<const RankNews> news, const NewsLimits&) {
                  const std::scoped_lock lock(mutex_);
                  news_.assign(news.begin(), news.end());
                  return std::string();
                },
            .end_run =
                [&, rank](const std::string&) {
                  const std::scoped_lock lock(mutex_);
                  if (!mine.is_stopped) ended_.insert(rank);
                },
            .now = [this] { return now_.load(); }};
  }

  std::mutex mutex_;
  std::vector<Place> places_;
  std::set<int> ended_;
  std::vector<RankNews> news_;
  std::atomic<double> now_ = 1000;
  std::vector<std::unique_ptr<Watchdog>> watchdogs_;  // last: their threads use the other members
};

TEST(Watchdog, OfManyRanksSendsFewMessages) {
  ManyRanks ranks(16, 0.4);
  ranks.pass(0);
  const int before = ranks.sent(5);
  for (int period = 0; period < 5; ++period) ranks.pass(0.06);
  EXPECT_EQ(ranks.sent(5) - before, 5 * 4);  // in each period to ranks 6, 7, 9 and 13
  EXPECT_EQ(ranks.ended(), std::set<int>());
}

// Rank 2 sends no sign to rank 1: that it makes progress comes there through others.
TEST(Watchdog, KnowsOfTheProgressOfFarRanks) {
  ManyRanks ranks(16, 0.4);
  ranks.pass(0);
  for (int time = 0; time < 4; ++time) {
    ranks.pass(0.15);
    ranks.change(2, [](RankStatus& status) { ++status.ended; });
    ranks.pass(0.005);
  }
  EXPECT_EQ(ranks.ended(), std::set<int>());
  ranks.pass(0.35);
  EXPECT_EQ(ranks.ended(), std::set<int>());
  ranks.pass(0.1);
  EXPECT_EQ(ranks.ended(), std::set({0}));
}

TEST(Watchdog, TellsWhichOfManyRanksIsStopped) {
  ManyRanks ranks(16, 0.4);
  ranks.change(9, [](RankStatus& status) { status.next = 77; });
  ranks.pass(0.1);
  ranks.stop(9);
  ranks.pass(0.5);
  EXPECT_EQ(ranks.ended(), std::set<int>());  // rank 0 waits for answers
  ranks.pass(1.6);
  EXPECT_EQ(ranks.ended(), std::set({0}));
  const std::vector<RankNews> news = ranks.news();
  ASSERT_EQ(news.size(), 16U);
  for (std::size_t rank = 0; rank < 16; ++rank) {
    EXPECT_EQ(news[rank].age > 2, rank == 9) << rank << ": " << news[rank].age;
    EXPECT_EQ(news[rank].status.next, rank == 9 ? 77 : -1) << rank;
  }
}

TEST(Watchdog, AHigherRankSpeaksWhenTheLowestIsStopped) {
  ManyRanks ranks(16, 0.4);
  ranks.pass(0.1);
  ranks.stop(0);
  ranks.pass(0.5);
  EXPECT_EQ(ranks.ended(), std::set<int>());
  ranks.pass(1.6);
  EXPECT_EQ(ranks.ended(), std::set({1}));
}

// After the last step only ranks that expect signs of rank 9 know that it is silent: 10, 11, 13 and 1.
TEST(Watchdog, EndsARunOfManyRanksBetweenSteps) {
  ManyRanks ranks(16, 0.4);
  for (int rank = 0; rank < 16; ++rank)
    ranks.change(rank, [](RankStatus& status) { status.phase = StepPhase::outside; });
  for (int period = 0; period < 5; ++period) ranks.pass(0.12);
  EXPECT_EQ(ranks.ended(), std::set<int>());
  ranks.stop(9);
  for (int period = 0; period < 5; ++period) ranks.pass(0.12);
  EXPECT_EQ(ranks.ended(), std::set<int>());
  for (int period = 0; period < 17; ++period) ranks.pass(0.12);
  ranks.pass(1.6);
  EXPECT_EQ(ranks.ended(), std::set({1}));
  EXPECT_GT(ranks.news()[9].age, 2);
}

}  // namespace
}  // namespace starpipe::runtime
