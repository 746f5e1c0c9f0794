// SPDX-License-Identifier: Apache-2.0
// Every rank has the same run when it begins.
#include "runtime/api/agreed_run.hpp"

#include <gtest/gtest.h>

#include "runtime/started_mpi.hpp"
#include "starpipe/base/index.hpp"
#include "support/config.hpp"
#include "support/message_of.hpp"
#include "support/networks.hpp"

namespace starpipe::runtime {
namespace {

TEST(AgreedRun, EveryRankKnowsThePartition) {
  Config config = config_of(small("gpt", {{"layers", 5}, {"hidden", 8}, {"context", 4}, {"tied", true}}),
                            "1f1b", 2, 4, 2);
  config.data.kind = "text";
  config.data.path = STARPIPE_TEST_TEXT;
  config.schedule.partition = true;
  const AgreedRuns agreed = agree_on_runs(*testing::mpi, {config});
  ASSERT_EQ(agreed.runs.size(), 1U);
  const AgreedRun& run = agreed.runs.front();
  ASSERT_TRUE(run.partition);
  const PartitionChoice& choice = *run.partition;
  EXPECT_EQ(choice.partition.cuts, run.config.schedule.cuts);
  EXPECT_EQ(choice.partition.cuts.size(), 1U);
  EXPECT_EQ(choice.placement, run.config.schedule.placement);
  EXPECT_FALSE(run.config.schedule.partition);
  EXPECT_TRUE(run.config.profile.units.empty());
  // The cuts of rank 0, which are by its measured times.
  int cut = choice.partition.cuts.front();
  MPI_Bcast(&cut, 1, MPI_INT, 0, run.mpi.comm());
  EXPECT_EQ(choice.partition.cuts.front(), cut);
  if (run.mpi.rank() != 0) return;
  EXPECT_EQ(choice.profile.units.size(), 7U);
  const std::uint64_t table = 256 * 8 * sizeof(float);
  const std::vector<plan::SharedUnits> shared = {
      {.name = "tokens", .units = {0, 6}, .weights = table, .master = 0}};
  EXPECT_EQ(choice.profile.shared, shared);
  EXPECT_EQ(choice.partition.loads.size(), 2U);
}

TEST(RankRequest, TellsNoValueFromTheWordNone) {
  const auto& mpi = *testing::mpi;
  const auto message = [&](const char* first, const char* last) {
    RankRequest request("train");
    const char* const value = mpi.rank() == 0 ? first : last;
    if (value != nullptr) request.add("--report", std::string(value));
    return message_of([&] { request.require_same(mpi, {}); });
  };
  EXPECT_EQ(message("none", "none"), "");
  EXPECT_EQ(message(nullptr, nullptr), "");
  if (mpi.ranks() == 1) return;
  EXPECT_EQ(message(nullptr, "none"),
            "--report: rank 0 has no value, rank 1 has none; all ranks need the same configuration");
  EXPECT_EQ(message("null", nullptr),
            "--report: rank 0 has null, rank 1 has no value; all ranks need the same configuration");
}

}  // namespace
}  // namespace starpipe::runtime
