// SPDX-License-Identifier: Apache-2.0
// Every rank has the same run when it begins.
#include "runtime/api/agreed_run.hpp"

#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/weights.hpp"
#include "runtime/started_mpi.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/model/network.hpp"
#include "support/config.hpp"
#include "support/folder.hpp"
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

TEST(AgreedRun, EachRankNeedsMemoryForItsOwnWeights) {
  Config config = config_of(small("mlp", {{"layers", 4}, {"hidden", 64}}), "1f1b", 2, 4, 2);
  config.training.optimizer.kind = "adamw";
  const auto sum = [](const std::vector<MainMemory>& ranks, auto part) {
    std::uint64_t bytes = 0;
    for (const MainMemory& rank : ranks) bytes += part(rank);
    return bytes;
  };
  const AgreedRuns agreed = agree_on_runs(*testing::mpi, {config});
  const AgreedRun& run = agreed.runs.front();
  ASSERT_EQ(run.memory.size(), testing::mpi->rank() == 0 ? index(testing::mpi->ranks()) : 0);
  const std::uint64_t parameters = run.experiment.network.parameter_count() * sizeof(float);
  const std::uint64_t listed = testing::mpi->rank() == 0 ? parameters : 0;
  EXPECT_EQ(sum(run.memory, [](const MainMemory& rank) { return rank.data.weights; }), listed);
  EXPECT_EQ(sum(run.memory, [](const MainMemory& rank) { return rank.data.gradients; }), listed);
  EXPECT_EQ(sum(run.memory, [](const MainMemory& rank) { return rank.data.optimizer; }), 2 * listed);
  EXPECT_EQ(sum(run.memory, [](const MainMemory& rank) { return rank.checkpoint; }), 0U);
  for (const MainMemory& rank : run.memory) EXPECT_GT(rank.process, runtime_bytes);
  config.checkpoint.folder = "c";
  const auto copied = main_memory_need(config, run.experiment, run.map, testing::mpi->ranks());
  EXPECT_EQ(sum(copied, [](const MainMemory& rank) { return rank.checkpoint; }), 3 * parameters);
  config.checkpoint.folder.clear();
  config.runtime.device = {"cuda"};  // weights, gradients and optimizer state have their home on the host
  const auto homes = main_memory_need(config, run.experiment, run.map, testing::mpi->ranks());
  const auto lasting = [](const MainMemory& rank) {
    return rank.data.weights + rank.data.gradients + rank.data.optimizer;
  };
  EXPECT_EQ(sum(homes, lasting), 4 * parameters);
}

TEST(AgreedRun, OfMoreMemoryThanTheHostHasIsRefused) {
  Config config = config_of(small("gpt", {{"layers", 80}, {"hidden", 8192}, {"heads", 64}, {"context", 8}}),
                            "1f1b", 16, 1, 1);
  config.data.kind = "text";
  config.data.path = STARPIPE_TEST_TEXT;
  config.runtime.workers_per_core = 64;
  config.training.optimizer.kind = "sgd";
  config.training.optimizer.momentum = 0;
  const auto message = message_of([&] { agree_on_runs(*testing::mpi, {config}); });
  const std::string ranks = testing::mpi->ranks() == 1 ? ": rank 0 needs " : ": ranks 0, 1 need ";
  EXPECT_TRUE(message.starts_with("host ")) << message;
  EXPECT_NE(message.find(ranks), std::string::npos) << message;
  EXPECT_NE(message.find(" of main memory (weights 240."), std::string::npos) << message;
  EXPECT_NE(message.find(", more than its memory, "), std::string::npos) << message;
  config.runtime.emulate = EmulationConfig{.F = {1e-3}, .B = {1e-3}, .W = {1e-3}};
  EXPECT_EQ(message_of([&] { agree_on_runs(*testing::mpi, {config}); }), "") << "no memory without numbers";
}

TEST(AgreedRun, AnEmulatedRankNeedsMemoryForItsMessages) {
  Config config = config_of(small("mlp", {{"layers", 4}, {"hidden", 64}}), "1f1b", 2, 4, 2);
  config.runtime.emulate = EmulationConfig{.F = {1e-3}, .B = {1e-3}, .W = {1e-3}};
  const AgreedRuns agreed = agree_on_runs(*testing::mpi, {config});
  const AgreedRun& run = agreed.runs.front();
  EXPECT_TRUE(run.memory.empty());
  const std::uint64_t message =
      testing::mpi->ranks() == 1 ? 0 : run.experiment.network.sizes().front().activation;
  for (const MainMemory& rank : main_memory_need(config, run.experiment, run.map, testing::mpi->ranks())) {
    EXPECT_EQ(rank.message, message);
    EXPECT_EQ(rank.total(), message);
  }
}

TEST(AgreedRun, VerifyNeedsMemoryForTheWholeNetwork) {
  const bool is_root = testing::mpi->rank() == 0;
  const auto ranks = is_root ? index(testing::mpi->ranks()) : 0;
  const auto message = [&](const char* model, const ModelKeys& options) {
    const model::Network network = model::build_network(small(model, options), 1, 2);
    RankLocation location;
    location.machine = "m1";
    return message_of([&] {
      require_reference_memory(*testing::mpi, network, std::vector<MainMemory>(ranks),
                               std::vector<RankLocation>(ranks, location));
    });
  };
  EXPECT_EQ(message("mlp", {{"hidden", 8}}), "");
  EXPECT_THAT(message("gpt", {{"layers", 80}, {"hidden", 8192}, {"heads", 64}, {"context", 8}}),
              ::testing::MatchesRegex("host m1: ranks? .*needs? [0-9.]+ TiB of main memory "
                                      "\\(sequential computation [0-9.]+ TiB\\), more than its memory, .*"));
}

// Every rank works in a folder of its own, as on hosts whose disks have other copies of the same names.
class OwnFolder : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::current_path(folder_.path()); }
  void TearDown() override { std::filesystem::current_path(before_); }

  /// Expects this refusal on every rank if there are several, and agreement if there is one.
  static void expect_refused(const Config& config, const std::string& message,
                             const TrainerParts& parts = {}) {
    const std::string found = message_of([&] { agree_on_runs(*testing::mpi, {config}, parts); });
    EXPECT_EQ(found, testing::mpi->ranks() == 1 ? "" : message);
  }

  std::filesystem::path before_ = std::filesystem::current_path();
  Folder folder_;
  int rank_ = testing::mpi->rank();
};

TEST_F(OwnFolder, OtherWeights) {
  Config config = config_of(small("mlp", {}), "1f1b", 2, 4, 2);
  const model::Network network = model::build_network(config.model, 2, 2);
  const auto save = [&](int seed) {
    model::save_weights("w.safetensors", network,
                        model::start_parameters(network, static_cast<std::uint64_t>(seed)));
  };
  config.model.init = "w.safetensors";
  save(1);
  EXPECT_EQ(message_of([&] { agree_on_runs(*testing::mpi, {config}); }), "")
      << "equal files of other folders";
  save(rank_);
  expect_refused(config, "model.init: w.safetensors does not have the same weights on all ranks");
  config.evaluate.alone = true;
  expect_refused(config, "weights: w.safetensors does not have the same weights on all ranks");
  config.evaluate.alone = false;
  // Tensors that one rank reads.
  for (const std::size_t set : {std::size_t{0}, network.sets().size() - 1}) {
    model::SetValues values = model::start_parameters(network, 1);
    values[set].back() += static_cast<float>(rank_);
    model::save_weights("w.safetensors", network, values);
    expect_refused(config, "model.init: w.safetensors does not have the same weights on all ranks");
  }
  model::save_weights("w.safetensors", network, model::start_parameters(network, 1),
                      {{"step", std::to_string(rank_)}});
  EXPECT_EQ(message_of([&] { agree_on_runs(*testing::mpi, {config}); }), "") << "equal weights";
  config.model.init.reset();
  TrainerParts parts;
  parts.weights = model::start_parameters(network, 1);
  parts.weights->back().back() += static_cast<float>(rank_);
  expect_refused(config, "TrainerParts::weights: the program's weights differ among the ranks", parts);
}

TEST_F(OwnFolder, OtherLinksAndProfiles) {
  Config config = config_of(small("mlp", {}), "1f1b", 2, 4, 2);
  config.runtime.emulate = EmulationConfig{.F = {1e-3}, .B = {1e-3}, .W = {1e-3}, .links_file = "links.yaml"};
  const auto links = [](double latency, plan::Sharing sharing) {
    return plan::Links({{.link = {latency, 1e-9}, .sharing = sharing}});
  };
  config.runtime.emulate->links = links(1e-3 + rank_ * 1e-3, plan::Sharing::none);
  const std::string refusal = "runtime.emulate.links: links.yaml is not the same file on all ranks";
  expect_refused(config, refusal);
  config.runtime.emulate->links = links(1e-3, rank_ == 0 ? plan::Sharing::none : plan::Sharing::fair);
  expect_refused(config, refusal);
  config.runtime.emulate->links = links(1e-3, plan::Sharing::fair);
  EXPECT_EQ(message_of([&] { agree_on_runs(*testing::mpi, {config}); }), "");
  config.runtime.emulate->host = plan::HomeLink{.link = {1e-3 + rank_ * 1e-3, 1e-9}};
  expect_refused(config, refusal);
  config.runtime.emulate->host.reset();
  if (rank_ == 0) config.runtime.emulate->disk = plan::HomeLink{};
  expect_refused(config, refusal);
  config.runtime.emulate->disk.reset();
  config.runtime.emulate->links = {};
  config.runtime.emulate->links_file.clear();
  config.runtime.links_file = "net.yaml";
  config.runtime.links = links(1e-3 + rank_ * 1e-3, plan::Sharing::none);
  expect_refused(config, "runtime.links: net.yaml is not the same file on all ranks");
  config.runtime.links = links(1e-3, plan::Sharing::fair);
  EXPECT_EQ(message_of([&] { agree_on_runs(*testing::mpi, {config}); }), "");
  config.schedule.profile_file = "profile.yaml";
  config.profile.units = {{.time = {.F = 1.0 + rank_, .B = 1, .W = 1}}};
  expect_refused(config, "schedule.profile: profile.yaml is not the same file on all ranks");
}

TEST_F(OwnFolder, OtherSchedules) {
  Config config = config_of(small("mlp", {}), "", 2, 2, 2);
  config.schedule.file = folder_
                             .write("order.csv", rank_ == 0 ? "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"
                                                            : "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n")
                             .filename();
  expect_refused(config, "schedule.file: order.csv is not the same file on all ranks");
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
