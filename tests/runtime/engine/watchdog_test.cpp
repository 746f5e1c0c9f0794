// SPDX-License-Identifier: Apache-2.0
// The watchdog ends a run only when no rank makes progress.
#include "runtime/engine/watchdog.hpp"

#include <atomic>
#include <chrono>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

namespace starpipe::runtime {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// The calls of a watchdog on one of two ranks, and what the other rank says.
class TwoRanks {
 public:
  explicit TwoRanks(int rank) : rank_(rank) {
    mine_.phase = other_.phase = StepPhase::running;
    mine_.step = other_.step = 7;
  }
  WatchdogCalls calls() {
    return {
        .status =
            [this] {
              ++checks_;
              return locked(mine_);
            },
        .send =
            [this](int, const WatchMessage& message) {
              ++sent_;
              if (message.kind == WatchMessage::Kind::question) is_asked_ = true;
            },
        .receive = [this]() -> std::vector<std::pair<int, WatchMessage>> {
          if (silent_) return {};
          const auto kind = is_asked_ ? WatchMessage::Kind::answer : WatchMessage::Kind::sign;
          return {
              {1 - rank_,
               {.kind = kind, .progress = now_ - idle_of_other(), .status = locked(other_), .silent = {}}}};
        },
        .explain = [](std::span<const RankNews> news,
                      const NewsLimits&) { return std::to_string(news.size()); },
        .end_run =
            [this](const std::string& message) {
              const std::scoped_lock lock(mutex_);
              if (ends_++ == 0) message_ = message;
            },
        .now = [this] { return now_.load(); }};
  }
  /// Lets so many seconds of the watchdog's clock pass, and waits until a check that began later has ended: a
  /// check reads the clock, then the status of this rank.
  void pass(double seconds) {
    now_ = now_ + seconds;
    for (const int before = checks_; checks_ < before + 3;) std::this_thread::sleep_for(1ms);
  }
  void mine(const auto& change) { set(mine_, change); }
  void other(const auto& change) {
    set(other_, change);
    progress_of_other_ = now_.load();
  }
  void silence_other() { silent_ = true; }
  [[nodiscard]] int ends() const { return ends_; }
  [[nodiscard]] int sent() const { return sent_; }
  std::string message() {
    const std::scoped_lock lock(mutex_);
    return message_;
  }

 private:
  // A long task is not progress.
  double idle_of_other() {
    const RankStatus status = locked(other_);
    const bool runs = status.running >= 0 && status.running_for < 2;
    const bool moves = status.transfer_for >= 0 && status.transfer_for < 2;
    return runs || moves ? 0 : now_ - progress_of_other_;
  }
  RankStatus locked(const RankStatus& status) {
    const std::scoped_lock lock(mutex_);
    return status;
  }
  void set(RankStatus& status, const auto& change) {
    const std::scoped_lock lock(mutex_);
    change(status);
  }

  int rank_;
  std::mutex mutex_;
  RankStatus mine_;
  RankStatus other_;
  std::string message_;
  std::atomic<bool> silent_ = false;
  std::atomic<int> ends_ = 0;
  std::atomic<int> sent_ = 0;
  std::atomic<int> checks_ = 0;
  std::atomic<double> now_ = 1000;
  std::atomic<double> progress_of_other_ = 1000;
  std::atomic<bool> is_asked_ = false;
};

TEST(Watchdog, EndsARunInWhichNoRankMakesProgress) {
  TwoRanks ranks(0);
  const Watchdog watchdog(0.1, 0, 2, ranks.calls());
  ranks.pass(0);
  ranks.pass(0.09);
  EXPECT_EQ(ranks.ends(), 0);
  ranks.pass(0.02);
  EXPECT_GT(ranks.ends(), 0);
  EXPECT_THAT(ranks.message(), StartsWith("no rank has made progress for 0.1 s in step 8 (runtime.timeout)"));
  EXPECT_THAT(ranks.message(), HasSubstr("Who waits for whom:\n2"));
  EXPECT_GT(ranks.sent(), 0);
}

TEST(Watchdog, LeavesAloneARunThatIsBetweenSteps) {
  TwoRanks ranks(0);
  ranks.mine([](RankStatus& status) { status.phase = StepPhase::outside; });
  const Watchdog watchdog(0.2, 0, 2, ranks.calls());
  ranks.pass(0);
  ranks.pass(100);
  EXPECT_EQ(ranks.ends(), 0);
}

// As when it is stopped while the weights are gathered.
TEST(Watchdog, EndsARunWithASilentRankAfterTheLastStep) {
  TwoRanks ranks(0);
  const auto leave = [](RankStatus& status) { status.phase = StepPhase::outside; };
  ranks.mine(leave);
  ranks.other(leave);
  const Watchdog watchdog(0.4, 0, 2, ranks.calls());
  ranks.pass(0);
  ranks.pass(100);
  EXPECT_EQ(ranks.ends(), 0);
  ranks.silence_other();
  ranks.pass(0.3);
  EXPECT_EQ(ranks.ends(), 0);
  ranks.pass(0.2);
  EXPECT_GT(ranks.ends(), 0);
  EXPECT_THAT(ranks.message(),
              StartsWith("a rank has been silent for more than 0.4 s after step 8 (runtime.timeout)"));
}

// Here or elsewhere.
TEST(Watchdog, CountsTasksOfAllRanks) {
  for (const bool here : {true, false}) {
    TwoRanks ranks(0);
    const auto end_task = [](RankStatus& status) { ++status.ended; };
    const Watchdog watchdog(0.1, 0, 2, ranks.calls());
    ranks.pass(0);
    for (int task = 0; task < 2; ++task) {
      ranks.pass(0.09);
      here ? ranks.mine(end_task) : ranks.other(end_task);
      ranks.pass(0);
    }
    ranks.pass(0.09);
    EXPECT_EQ(ranks.ends(), 0) << "here: " << here;
    ranks.pass(0.02);
    EXPECT_GT(ranks.ends(), 0) << "here: " << here;
  }
}

TEST(Watchdog, CountsATaskThatRunsForAtMostTenTimeouts) {
  for (const bool here : {true, false}) {
    TwoRanks ranks(0);
    const auto run = [](double seconds) {
      return [=](RankStatus& status) {
        status.running = 3;
        status.running_for = seconds;
      };
    };
    here ? ranks.mine(run(1.9)) : ranks.other(run(1.9));
    const Watchdog watchdog(0.2, 0, 2, ranks.calls());
    ranks.pass(0);
    ranks.pass(10);
    EXPECT_EQ(ranks.ends(), 0) << "here: " << here;
    here ? ranks.mine(run(2.1)) : ranks.other(run(2.1));
    ranks.pass(0.3);
    EXPECT_GT(ranks.ends(), 0) << "here: " << here;
  }
}

TEST(Watchdog, CountsAnEmulatedTransferThatLastsForAtMostTenTimeouts) {
  TwoRanks ranks(0);
  ranks.other([](RankStatus& status) { status.transfer_for = 1.9; });
  const Watchdog watchdog(0.2, 0, 2, ranks.calls());
  ranks.pass(0);
  ranks.pass(10);
  EXPECT_EQ(ranks.ends(), 0);
  ranks.other([](RankStatus& status) { status.transfer_for = 2.1; });
  ranks.pass(0.3);
  EXPECT_GT(ranks.ends(), 0);
}

// The rank that ends the run is silent until the launcher has ended it.
TEST(Watchdog, AHigherRankGivesTheLowestOneTimeToEndTheRun) {
  TwoRanks ranks(1);
  const Watchdog watchdog(0.2, 1, 2, ranks.calls());
  ranks.pass(0);
  ranks.pass(0.25);
  ranks.silence_other();
  ranks.pass(1.4);
  EXPECT_EQ(ranks.ends(), 0);
  ranks.pass(0.2);
  EXPECT_GT(ranks.ends(), 0);
}

// That a task ran there is old news.
TEST(Watchdog, ARankThatIsSilentMakesNoProgress) {
  TwoRanks ranks(0);
  ranks.other([](RankStatus& status) { status.running = 3; });
  const Watchdog watchdog(0.2, 0, 2, ranks.calls());
  ranks.pass(0);
  ranks.pass(0.3);
  EXPECT_EQ(ranks.ends(), 0);
  ranks.silence_other();
  ranks.pass(0.3);
  EXPECT_GT(ranks.ends(), 0);
}

TEST(Watchdog, TheLowestRankSpeaksUnlessItIsSilent) {
  for (const bool silent : {false, true}) {
    TwoRanks ranks(1);
    if (silent) ranks.silence_other();
    const Watchdog watchdog(0.2, 1, 2, ranks.calls());
    ranks.pass(0);
    ranks.pass(2.1);
    EXPECT_EQ(ranks.ends() > 0, silent);
    ranks.pass(0.2);
    EXPECT_GT(ranks.ends(), 0);
  }
}

}  // namespace
}  // namespace starpipe::runtime
