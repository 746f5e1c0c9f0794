// SPDX-License-Identifier: Apache-2.0
// The watchdog ends a run only when no rank makes progress, and says who waits for whom.
#include "runtime/engine/watchdog.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <span>
#include <string>
#include <thread>

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
    return {.status =
                [this] {
                  ++checks_;
                  return locked(mine_);
                },
            .send = [this](const RankStatus&) { ++sent_; },
            .receive = [this]() -> std::vector<std::pair<int, RankStatus>> {
              if (silent_) return {};
              return {{1 - rank_, locked(other_)}};
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
  void other(const auto& change) { set(other_, change); }
  void silence_other() { silent_ = true; }
  [[nodiscard]] int ends() const { return ends_; }
  [[nodiscard]] int sent() const { return sent_; }
  std::string message() {
    const std::scoped_lock lock(mutex_);
    return message_;
  }

 private:
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
