// SPDX-License-Identifier: Apache-2.0
// The watchdog ends a run only when no rank makes progress, and says who waits for whom.
#include "runtime/engine/watchdog.hpp"

#include <array>
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

#include <gmock/gmock.h>

#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "support/networks.hpp"

namespace starpipe::runtime {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::ContainsRegex;
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

/// Two stages on two workers, each on a rank of its own.
class WhoWaits : public ::testing::Test {
 protected:
  WhoWaits() : progress_{TaskProgress(graph_, {true, false}), TaskProgress(graph_, {false, true})} {
    for (TaskProgress& progress : progress_) progress.enter(StepPhase::running, 4);
  }
  /// Runs the tasks before `name` of a rank; the task itself too, or it runs still.
  void run_until(int rank, const std::string& name, bool runs) {
    for (const Task& task : graph_.tasks()) {
      if (task.worker != rank) continue;
      const bool last = name_of(task, schedule_) == name;
      if (last && !runs) return;
      progress_[index(rank)].start(task);
      if (last) return;
      progress_[index(rank)].end(task);
    }
  }
  [[nodiscard]] std::string table(double age_of_1 = 0, double long_task = 100) const {
    const std::array news = {RankNews{progress_[0].status(), 0}, RankNews{progress_[1].status(), age_of_1}};
    return wait_table(graph_, schedule_, WorkerMap(2, 2), news, {.silent = 1, .long_task = long_task});
  }

  const model::Network network_ = tiny_mlp(2);
  const plan::Schedule schedule_ = plan::make_schedule("1f1b", {.workers = 2, .microbatches = 3});
  const TaskGraph graph_{schedule_, network_, {}};
  std::array<TaskProgress, 2> progress_;
};

TEST_F(WhoWaits, ForARankThatRuns) {
  run_until(0, "BW(0,0)", false);
  run_until(1, "BW(1,0)", true);
  EXPECT_THAT(table(), HasSubstr("0  waits to run BW(0,0)    BW(0,0)    gradient of stage 0, micro-batch 0, "
                                 "from BW(1,0)  rank 1: runs BW(1,0) for 0.0 s"));
}

TEST_F(WhoWaits, ForARankThatIsSilent) {
  run_until(0, "BW(0,0)", false);
  run_until(1, "F(1,0)", true);
  EXPECT_THAT(table(2.5), HasSubstr("rank 1: silent for 2.5 s (last known: runs F(1,0) for"));
}

// News that is late as well does not hide it.
TEST_F(WhoWaits, ForATaskThatRunsForTooLong) {
  run_until(0, "BW(0,0)", false);
  run_until(1, "F(1,0)", true);
  EXPECT_THAT(table(2.5, 0), HasSubstr("rank 1: runs F(1,0) for 2.5 s, longer than ten timeouts"));
}

TEST_F(WhoWaits, ForAnEmulatedTransferThatLastsForTooLong) {
  run_until(0, "F(0,1)", true);
  run_until(1, "F(1,0)", false);
  RankStatus receiver = progress_[1].status();
  receiver.transfer_for = 3;
  const std::array news = {RankNews{progress_[0].status(), 0}, RankNews{receiver, 0.5}};
  EXPECT_THAT(wait_table(graph_, schedule_, WorkerMap(2, 2), news, {.silent = 1, .long_task = 2}),
              HasSubstr("1  waits for an emulated transfer for 3.5 s, longer than ten timeouts"));
}

TEST_F(WhoWaits, ForASilentRankAfterTheLastStep) {
  progress_[0].enter(StepPhase::outside, 4);
  progress_[1].enter(StepPhase::outside, 4);
  EXPECT_THAT(table(2.5), ContainsRegex("0  is in no step +rank 1: silent for 2.5 s"));
}

// On a busy machine news of a healthy rank may be late, too.
TEST(WaitTable, NamesTheRankThatIsSilentForLongest) {
  const model::Network network = tiny_mlp(3);
  const plan::Schedule schedule = plan::make_schedule("gpipe", {.workers = 3, .microbatches = 2});
  const TaskGraph graph(schedule, network, {});
  TaskProgress progress(graph, {true, false, false});
  progress.enter(StepPhase::outside, 4);
  const std::array news = {RankNews{progress.status(), 0}, RankNews{progress.status(), 1.1},
                           RankNews{progress.status(), 2.7}};
  EXPECT_THAT(wait_table(graph, schedule, WorkerMap(3, 3), news, {.silent = 1, .long_task = 100}),
              AllOf(ContainsRegex("0  is in no step +rank 2: silent for 2.7 s"),
                    ContainsRegex("1  silent for 1.1 s .*rank 2: silent for 2.7 s")));
}

TEST_F(WhoWaits, ForAMessage) {
  run_until(0, "F(0,1)", true);
  run_until(1, "F(1,0)", false);
  EXPECT_THAT(table(), HasSubstr("activation of stage 0, micro-batch 0, from F(0,0)"));
  EXPECT_THAT(table(), HasSubstr("rank 0: runs F(0,1) for 0.0 s; has computed it: it has not arrived, or the "
                                 "policy does not start the task"));
}

TEST_F(WhoWaits, ForTheEndOfTheStep) {
  run_until(0, "", false);
  run_until(1, "F(1,2)", true);
  EXPECT_THAT(table(), HasSubstr("0  waits for all ranks to end step 5"));
  EXPECT_THAT(table(), HasSubstr("rank 1: runs F(1,2) for"));
}

// One rank still ends a step, the other one waits for it to begin the evaluation after the step.
TEST_F(WhoWaits, ForARankThatDoesNotEvaluateYet) {
  const plan::Schedule forward = plan::forward_passes(schedule_, 5);
  const TaskGraph graph = TaskGraph::evaluation(schedule_, forward, network_);
  TaskProgress evaluation(graph, {true, false}, true);
  evaluation.enter(StepPhase::beginning, 4);
  run_until(1, "F(1,2)", true);
  const std::array news = {RankNews{evaluation.status(), 0}, RankNews{progress_[1].status(), 0}};
  EXPECT_THAT(wait_table(graph, forward, WorkerMap(2, 2), news, {.silent = 1, .long_task = 100}),
              AllOf(HasSubstr("0  waits for all ranks to begin the evaluation after step 5"),
                    HasSubstr("rank 1: is in step 5")));
  evaluation.enter(StepPhase::running, -1);
  EXPECT_EQ(part_of_run(evaluation.status()), "the evaluation before the first step");
  const std::array both = {RankNews{evaluation.status(), 0}, RankNews{evaluation.status(), 0}};
  EXPECT_THAT(wait_table(graph, forward, WorkerMap(2, 2), both, {.silent = 1, .long_task = 100}),
              HasSubstr("waits to run F(0,0)"));
}

TEST_F(WhoWaits, ForARankThatIsInNoStep) {
  progress_[0].enter(StepPhase::beginning, 5);
  progress_[1].enter(StepPhase::outside, 4);
  EXPECT_THAT(table(), HasSubstr("0  waits for all ranks to begin step 6"));
  EXPECT_THAT(table(), HasSubstr("rank 1: is in no step"));
}

}  // namespace
}  // namespace starpipe::runtime
