// SPDX-License-Identifier: Apache-2.0
// Schedules as PyTorch's CSV.
#include "starpipe/plan/formats/schedule_csv.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "plan/formats/bad_input.hpp"
#include "plan/formats/json_value.hpp"
#include "plan/formats/trace_json.hpp"
#include "starpipe/plan/formats/schedule_json.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/simulate/simulate.hpp"
#include "support/message_of.hpp"
#include "support/schedules.hpp"

namespace starpipe::plan {
namespace {

using namespace nlohmann::literals;

TEST(ScheduleCsv, WritesPyTorchsForm) {
  EXPECT_EQ(schedule_csv(named("gpipe", 2, 2)), "0F0,0F1,0B1,0B0\n1F0,1F1,1B1,1B0\n");
}

TEST(ScheduleCsv, TheOrderOfTheCellsIsTheOrder) {
  const Schedule read = schedule_from_csv("0F0,0F1,0B0,0B1\n1F0,1F1,1B1,1B0\n", "x.csv");
  const Schedule swapped = schedule_from_csv("0F0,0F1,0B1,0B0\n1F0,1F1,1B1,1B0\n", "x.csv");

  EXPECT_EQ(read.job(read.order(0)[2]), (Job{0, 0, Pass::BW}));
  EXPECT_EQ(swapped.job(swapped.order(0)[2]), (Job{0, 1, Pass::BW}));
  EXPECT_GT(simulate(read).makespan, simulate(swapped).makespan);
}

TEST(ScheduleCsv, RoundTripsEverySchedule) {
  for (const Schedule& schedule : examples()) {
    const std::string text = schedule_csv(schedule);

    const Schedule read = schedule_from_csv(text, "x.csv", [&](int) { return schedule.graph(); });

    EXPECT_EQ(schedule_csv(read), text) << schedule.name();
    EXPECT_EQ(read.job_count(), schedule.job_count());
    EXPECT_EQ(read.discipline(), Discipline::ordered);
    for (const JobId id : schedule.order()) EXPECT_EQ(read.compute(id), schedule.compute(id));
    EXPECT_TRUE(check(read).ok()) << schedule.name() << ": " << check(read).problem;
  }
}

TEST(ScheduleCsv, ReadsBlanksIdleCellsAndForeignLineEnds) {
  const Schedule read =
      schedule_from_csv("\xef\xbb\xbf 0F0 , , 0I0,,0W0,\r\n,1F0,\"1B0\",,\t\r\n,,,\r\n\r\n\n", "a/b/zb.csv");

  EXPECT_EQ(read.name(), "zb");
  EXPECT_EQ(read.workers(), 3);
  EXPECT_EQ(read.stages(), 2);
  EXPECT_TRUE(read.split_backward(0, 0));
  EXPECT_FALSE(read.split_backward(1, 0));
  EXPECT_TRUE(read.order(2).empty());
  EXPECT_EQ(schedule_csv(read), "0F0,0I0,0W0\n1F0,1B0,\n,,\n");
  EXPECT_EQ(simulate(read).makespan, 6);
}

// In PyTorch 2.5 B is the pass that is now I if a W belongs to it, and BW is the pass that is now B.
TEST(ScheduleCsv, ReadsFilesOfPyTorch25) {
  const Schedule read = schedule_from_csv("0F0,0F1,0BW0,0BW1\n1F0,1B0,1F1,1W0,1B1,1W1\n", "zb.csv");
  EXPECT_EQ(schedule_csv(read), "0F0,0F1,0B0,0B1,,\n1F0,1I0,1F1,1W0,1I1,1W1\n");
  const Schedule split = schedule_from_csv("0F0,0B0,0F1,0W0,0B1,0W1", "zb.csv");
  EXPECT_EQ(schedule_csv(split), "0F0,0I0,0F1,0W0,0I1,0W1\n");
  // B is whole where no W belongs to it.
  EXPECT_EQ(schedule_csv(schedule_from_csv("0F0,0B0,0F1,0B1,0W1", "x.csv")), "0F0,0B0,0F1,0I1,0W1\n");
}

TEST(ScheduleCsv, ReadsBatchesOfTransfers) {
  // Each worker sends in the cell in which it receives: the receives must not delay the sends.
  const std::string batched =
      "0F0,0SEND_F0,0F1,(0RECV_B0;0SEND_F1)BATCH_P2P,0B0,0RECV_B1,0B1\n"
      "1RECV_F0,1F0,1B0,(1RECV_F1;1SEND_B0)BATCH_P2P,1F1,1B1,1SEND_B1\n";
  EXPECT_EQ(schedule_csv(schedule_from_csv(batched, "x.csv")), "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
}

TEST(ScheduleCsv, NamesTheCulpritInBadInput) {
  const std::vector<testing::BadInput> inputs = {
      {"", {"empty"}},
      {"\n \n", {"empty"}},
      {",,\n,,\n", {"no jobs"}},
      {"0F0,0BX0", {"row 1, cell 2", "0BX0"}},
      {"0F0,0BW0,0F1,0B1", {"row 1, cell 3", "W(0,1)", "missing"}},
      {"0F0,0B0,(0F1;0B1)BATCH_P2P", {"row 1, cell 3", "not a send"}},
      {"0F0,0B0,()BATCH_P2P", {"row 1, cell 3", "\"\""}},
      {"0F0,0B0\n1F0,1SEND_X0", {"row 2, cell 2", "1SEND_X0"}},
      {"0F0,0B0\n1F0,1SEND_B0", {"row 1, cell 2", "BW(0,0) can never start", "stage 1, micro-batch 0"}},
      {"0F0,0B0,0UNSHARD1", {"row 1, cell 3", "0UNSHARD1"}},
      {"0F0,,F", {"row 1, cell 3", "\"F\""}},
      {"0F0,-1B0", {"row 1, cell 2", "-1B0"}},
      {"0F0,0B99999999999", {"row 1, cell 2"}},
      {"0F0,0B2147483647", {"row 1, cell 2"}},
      {"0F0,0b0", {"row 1, cell 2", "0b0"}},
      {"0F0;0B0", {"row 1, cell 1", "0F0;0B0"}},
      {"0F0,0B0 0F1", {"row 1, cell 2"}},
      {std::string("0F0\0,0B0", 8), {"row 1, cell 1"}},
      {"0F0,0B0,(0F1)OVERLAP_F_B", {"row 1, cell 3", "OVERLAP_F_B", "pair"}},
      {"0F0,0B0,(0F1;0B1)OVERLAP", {"row 1, cell 3", "OVERLAP"}},
      {"0F0,0B0,(0F1;0B1;0F2)OVERLAP_F_B", {"row 1, cell 3", "0B1;0F2"}},
      {"0F0,0B0,(0F1;0REDUCE_GRAD)OVERLAP_F_B", {"row 1, cell 3", "REDUCE_GRAD"}},
      {"(0F0;0B1)OVERLAP_F_B,0F1", {"row 1, cell 1", "backward", "micro-batch 0"}},
      {"(0B0;0F0)OVERLAP_F_B",
       {"row 1, cell 1", "F(0,0) and BW(0,0) cannot run at once: the second waits for the first"}},
      {"0F0,0B0\n1B0,1F0", {"row 2, cell 1", "BW(1,0) can never start", "F(1,0) (row 2, cell 2)", "cycle"}},
      {"0F0,0B0,0F1,0B1\n1F1,1F0,1B0,1B1",
       {"row 1, cell 2: BW(0,0) can never start: it waits for BW(1,0) (row 2, cell 3), which waits for "
        "F(1,0)",
        "a cycle of 5 jobs"}},
      {"0F0,0B0,,0F0", {"row 1, cell 4", "F(0,0)", "twice", "row 1, cell 1"}},
      {"0F0", {"row 1, cell 1", "backward", "stage 0, micro-batch 0", "missing"}},
      {"0B0", {"row 1, cell 1", "BW(0,0) can never start", "F(0,0)", "missing"}},
      {"0F0,0I0", {"row 1, cell 1", "W(0,0)", "missing"}},
      {"0F0,0W0", {"row 1, cell 2", "W(0,0) can never start", "B(0,0)", "missing"}},
      {"0F0,0I0,0B0", {"row 1, cell", "BW(0,0)", "B(0,0)"}},
      {"0F0,0B0\n2F0,2B0",
       {"row 2, cell 1", "F(2,0) can never start", "F(1,0)", "3 stages by row 2, cell 1"}},
      {"0F1,0B1", {"F(0,0)", "missing", "2 micro-batches by row 1"}},
  };
  testing::expect_refused(inputs, "bad.csv",
                          [](const std::string& text) { schedule_from_csv(text, "bad.csv"); });
}

}  // namespace
}  // namespace starpipe::plan
