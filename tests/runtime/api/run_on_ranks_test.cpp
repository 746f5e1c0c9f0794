// SPDX-License-Identifier: Apache-2.0
// What every rank knows when the work of a command begins. Each call starts and ends MPI, so there is one.
#include "runtime/api/run_on_ranks.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "starpipe/base/index.hpp"

namespace starpipe::runtime {
namespace {

TEST(RunOnRanks, EveryRankKnowsThePartition) {
  int calls = 0;
  const int status = run_on_ranks(
      RankRequest("test"),
      [] {
        Config config;
        config.model.kind = "gpt";
        config.data.kind = "text";
        config.data.path = STARPIPE_TEST_TEXT;
        config.model.options = {{"layers", 5}, {"hidden", 8}, {"heads", 2}, {"context", 4}, {"tied", true}};
        config.training.microbatches = 4;
        config.training.microbatch_size = 2;
        config.schedule.name = "1f1b";
        config.schedule.workers = 2;
        config.schedule.partition = true;
        return std::vector{config};
      },
      [&](const std::vector<AgreedRun>& runs) {
        ++calls;
        ASSERT_EQ(runs.size(), 1U);
        const AgreedRun& run = runs.front();
        ASSERT_TRUE(run.partition);
        const PartitionChoice& choice = *run.partition;
        EXPECT_EQ(choice.profile.units.size(), 7U);
        const std::uint64_t table = 256 * 8 * sizeof(float);
        const std::vector<plan::SharedUnits> shared = {
            {.name = "tokens", .units = {0, 6}, .weights = table, .master = 0}};
        EXPECT_EQ(choice.profile.shared, shared);
        EXPECT_EQ(choice.partition.cuts, run.config.schedule.cuts);
        EXPECT_EQ(choice.partition.cuts.size(), 1U);
        EXPECT_EQ(choice.placement, run.config.schedule.placement);
        EXPECT_EQ(choice.partition.loads.size(), 2U);
        EXPECT_FALSE(run.config.schedule.partition);
        EXPECT_TRUE(run.config.profile.units.empty());
        // The measured times of rank 0, to the last bit.
        double bottleneck = choice.partition.bottleneck;
        MPI_Bcast(&bottleneck, 1, MPI_DOUBLE, 0, run.mpi.comm());
        EXPECT_EQ(choice.partition.bottleneck, bottleneck);
      });
  EXPECT_EQ(status, 0);
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace starpipe::runtime
