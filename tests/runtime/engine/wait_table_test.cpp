// SPDX-License-Identifier: Apache-2.0
// The table that says who waits for whom, in the message that ends a run.
#include <array>
#include <string>

#include <gmock/gmock.h>

#include "runtime/engine/watchdog.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "support/networks.hpp"

namespace starpipe::runtime {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

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
