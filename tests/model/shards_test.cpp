// SPDX-License-Identifier: Apache-2.0
// Networks whose blocks are cut into shards, compared with the same network without shards.
#include <cmath>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "model/gradients.hpp"
#include "model/short_training.hpp"
#include "model/weights.hpp"
#include "starpipe/base/index.hpp"
#include "support/folder.hpp"
#include "support/message_of.hpp"
#include "support/networks.hpp"

namespace starpipe::model {
namespace {

using namespace testing;

/// `model.tensor`: one number, or one for each of the two layers.
using Cut = std::vector<int>;

ModelConfig config_of(const std::string& kind, const Cut& shards) {
  static const std::map<std::string, ModelKeys> sizes = {
      {"gpt", {{"hidden", 32}, {"heads", 4}, {"context", 24}}},
      {"llama", {{"hidden", 32}, {"heads", 8}, {"kv_heads", 4}, {"intermediate", 48}, {"context", 24}}},
      {"mlp", {{"layers", 2}, {"hidden", 32}}}};
  return with(small(kind, sizes.at(kind)), {{"tensor", shards}});
}

Network network_of(const std::string& kind, const Cut& shards, int stages = 2) {
  return build_network(config_of(kind, shards), 2, stages);
}

/// The distance of all tensors together, relative to their size.
double total_distance(const Tensors& a, const Tensors& b) {
  double difference = 0;
  double size = 0;
  for (const auto& [name, tensor] : a) {
    const Tensor& other = b.at(name);
    EXPECT_EQ(tensor.shape, other.shape) << name;
    for (std::size_t i = 0; i < tensor.values.size(); ++i) {
      difference += std::pow(static_cast<double>(tensor.values[i] - other.values[i]), 2);
      size += std::pow(static_cast<double>(other.values[i]), 2);
    }
  }
  return std::sqrt(difference / size);
}

class Shards : public ::testing::TestWithParam<std::string> {};
class ShardsOfBlocks : public Shards {};

/// One number of shards, and another one in each layer.
const std::vector<Cut> cuts = {{2}, {4}, {4, 2}, {1, 4}, {2, 1}};

TEST_P(Shards, AddUpToTheSameTraining) {
  const Network whole = network_of(GetParam(), {1});
  const ReferenceRun expected = train(whole);
  for (const Cut& shards : cuts) {
    SCOPED_TRACE(::testing::PrintToString(shards));
    for (const int stages : {1, 2, GetParam() == "mlp" ? 3 : 4}) {
      const Network network = network_of(GetParam(), shards, stages);
      EXPECT_EQ(network.shards(), std::ranges::max(shards));
      EXPECT_EQ(network.whole_stages(), stages);
      EXPECT_EQ(network.parameter_count(), whole.parameter_count());
      const ReferenceRun run = train(network);
      for (std::size_t i = 0; i < expected.losses.size(); ++i) {
        EXPECT_NEAR(run.losses[i], expected.losses[i], 1e-6);
        EXPECT_NEAR(run.norms[i], expected.norms[i], 1e-5 * expected.norms[i]);
      }
      EXPECT_LE(
          total_distance(whole_tensors(network, run.gradients), whole_tensors(whole, expected.gradients)),
          1e-5);
      EXPECT_LE(
          total_distance(whole_tensors(network, run.parameters), whole_tensors(whole, expected.parameters)),
          1e-5);
    }
  }
}

TEST_P(Shards, StartAndAreSavedAsTheWhole) {
  const auto saved = [&](const Cut& shards) {
    const Folder folder;
    const Network network = network_of(GetParam(), shards);
    save_weights(folder / "w.safetensors", network, start_parameters(network, 7));
    return bytes_of(folder / "w.safetensors");
  };
  for (const Cut& shards : cuts) EXPECT_EQ(saved(shards), saved({1})) << ::testing::PrintToString(shards);
}

TEST_P(Shards, LoadTheFileOfTheWhole) {
  const Folder folder;
  const std::filesystem::path file = folder / "w.safetensors";
  const Network whole = network_of(GetParam(), {1});
  save_weights(file, whole, start_parameters(whole, 7));
  for (const Cut& shards : cuts) {
    const Network network = network_of(GetParam(), shards);
    EXPECT_EQ(load_weights(file, network), start_parameters(network, 7));
    EXPECT_NO_THROW(check_weights(file, network));
  }
}

// A stage that reads several shards adds them; the embedding and the head are whole.
TEST_P(ShardsOfBlocks, ReadAllShardsOfTheHalfBefore) {
  const Network network = network_of(GetParam(), {2}, 1);
  ASSERT_EQ(network.graph.size(), 1 + 2 * 2 * 2 + 1);
  EXPECT_FALSE(network.stages[1].adds_inputs());
  for (int s = 3; s < network.graph.size(); ++s) {
    EXPECT_EQ(network.graph.pred(s).size(), 2U);
    EXPECT_TRUE(network.stages[index(s)].adds_inputs());
  }
  EXPECT_EQ(network.parts[2].shard, 1);
}

// Embedding, 4 + 4 shards of the first block, 2 + 2 of the second, head.
TEST_P(ShardsOfBlocks, ReadAnyNumberOfShards) {
  const Network network = network_of(GetParam(), {4, 2}, 1);
  ASSERT_EQ(network.graph.size(), 14);
  const auto read = [&](int s) { return network.graph.pred(s).size(); };
  EXPECT_EQ(read(1), 1U);
  EXPECT_EQ(read(8), 4U);
  EXPECT_EQ(read(9), 4U);
  EXPECT_EQ(read(12), 2U);
  EXPECT_EQ(read(13), 2U);
}

// The whole second block is one stage with the head.
TEST_P(ShardsOfBlocks, AreNotNeededInEveryBlock) {
  const Network network = network_of(GetParam(), {2, 1}, 1);
  ASSERT_EQ(network.graph.size(), 6);
  EXPECT_EQ(network.graph.pred(5).size(), 2U);
  EXPECT_TRUE(network.stages[5].adds_inputs());
}

// With a summing stage between two halves. The head adds the last shards' outputs itself.
TEST_P(ShardsOfBlocks, AreAddedByAStageOfItsOwn) {
  ModelConfig config = config_of(GetParam(), {4});
  config.options["sums"] = std::string("one");
  const Network network = build_network(config, 2, 2);
  ASSERT_EQ(network.graph.size(), 1 + 4 * 4 + 3 + 1);
  const int sum = 5;
  EXPECT_EQ(network.graph.pred(sum).size(), 4U);
  EXPECT_EQ(network.graph.succ(sum).size(), 4U);
  EXPECT_EQ(network.parts[index(sum)].shard, 0);
  EXPECT_EQ(network.graph.pred(6).size(), 1U);
  const ReferenceRun expected = train(network_of(GetParam(), {4}));
  const ReferenceRun run = train(network);
  EXPECT_EQ(run.losses, expected.losses);
  const Network each = network_of(GetParam(), {4});
  EXPECT_LE(total_distance(whole_tensors(network, run.parameters), whole_tensors(each, expected.parameters)),
            1e-6);
}

TEST_P(ShardsOfBlocks, AreNoneToBeAdded) {
  ModelConfig config = config_of(GetParam(), {1});
  config.options["sums"] = std::string("one");
  expect_input_error([&] { build_network(config, 1, 1); },
                     "model.sums: one needs shards, but model.tensor is 1");
}

INSTANTIATE_TEST_SUITE_P(Kinds, Shards, ::testing::Values("gpt", "llama", "mlp"),
                         [](const auto& kind) { return kind.param; });
INSTANTIATE_TEST_SUITE_P(Kinds, ShardsOfBlocks, ::testing::Values("gpt", "llama"),
                         [](const auto& kind) { return kind.param; });

// Each shard has columns of a hidden layer. Those of the next one read them side by side.
TEST(ShardsOfAKind, AreColumnsOfAnMlp) {
  const Network network = network_of("mlp", {4, 2}, 3);
  ASSERT_EQ(network.graph.size(), 7);
  EXPECT_EQ(network.stages[1].output_columns(), 8U);
  EXPECT_EQ(network.stages[5].output_columns(), 16U);
  EXPECT_TRUE(network.graph.pred(3).empty());
  EXPECT_EQ(network.stages[5].input_columns(), std::vector<std::size_t>(4, 8));
  EXPECT_EQ(network.stages[6].input_columns(), std::vector<std::size_t>(2, 16));
  EXPECT_FALSE(network.stages[6].adds_inputs());
  EXPECT_EQ(network.source_index(3), 0) << "all read the same data";
  EXPECT_EQ(network.stages[5].stash_size(), 2U * (32 + 16)) << "the whole input, and the share of GELU's";
}

// docs/tensor.md: (4 + 12 / T) b s h numbers of a block, and 2 + heads / T statistics of each row.
TEST(ShardsOfAKind, KeepTheirShareOfTheStash) {
  const std::size_t rows = 2 * 24;
  const std::size_t hidden = 32;
  for (const std::size_t shards : {2U, 4U}) {
    const Network network = network_of("gpt", {static_cast<int>(shards)});
    const std::size_t block = network.stages[1].stash_size() + network.stages[1 + shards].stash_size();
    EXPECT_EQ(block, rows * (hidden * (4 * shards + 12) / shards + 2 + 4 / shards));
  }
}

TEST(ShardsOfAKind, DivideWhatTheyShare) {
  const auto refused = [](const std::string& kind, const std::string& key, const OptionValue& value,
                          const std::string& problem) {
    ModelConfig config = config_of(kind, {4});
    config.options[key] = value;
    expect_input_error([&] { build_network(config, 1, 1); }, problem);
  };
  refused("gpt", "tensor", Cut{3}, "model.tensor: 3 does not divide model.heads, 4");
  refused("gpt", "tensor", Cut{4, 3}, "model.tensor: 3 does not divide model.heads, 4");
  refused("gpt", "tensor", Cut{2, 2, 2}, "model.tensor: 3 values for model.layers, 2");
  refused("gpt", "tensor", Cut{}, "model.tensor: [] is not at least 1");
  refused("gpt", "tensor", Cut{2, 0}, "model.tensor: [2, 0] is not at least 1");
  refused("llama", "heads", 2, "model.kv_heads: 4 does not divide model.heads, 2");
  refused("llama", "kv_heads", 2, "model.tensor: 4 does not divide model.kv_heads, 2");
  refused("llama", "intermediate", 50, "model.tensor: 4 does not divide model.intermediate, 50");
  refused("mlp", "hidden", 30, "model.tensor: 4 does not divide model.hidden, 30");
  refused("mlp", "branches", 2,
          "model.tensor: does not apply with model.branches, 2: only a chain has shards");
}

}  // namespace
}  // namespace starpipe::model
