// SPDX-License-Identifier: Apache-2.0
// Networks whose embedding and head are cut into shards of the vocabulary, compared with the same network
// without.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "model/checking_backend.hpp"
#include "model/gradients.hpp"
#include "model/short_training.hpp"
#include "model/verification.hpp"
#include "model/weights.hpp"
#include "starpipe/base/index.hpp"
#include "support/datasets.hpp"
#include "support/folder.hpp"
#include "support/message_of.hpp"
#include "support/networks.hpp"

namespace starpipe::model {
namespace {

using namespace testing;

struct Wanted {
  std::string kind = "gpt";
  int shards = 1;
  int stages = 2;
  int tensor = 1;
  bool tied = false;
  Precision precision = Precision::fp32;
};

Network network_of(const Wanted& wanted) {
  ModelConfig config = small(wanted.kind, {{"hidden", 32},
                                           {"heads", 4},
                                           {"context", 24},
                                           {"vocabulary", 257},  // a prime: shards differ in size
                                           {"tied", wanted.tied}});
  if (wanted.tensor > 1) config.options["tensor"] = std::vector{wanted.tensor};
  config.vocabulary.shards = wanted.shards;
  config.precision = wanted.precision;
  return build_network(config, 2, wanted.stages);
}

/// Returns the largest distance of a tensor from the same one in `b`, relative to its size.
double max_distance(const Tensors& a, const Tensors& b) {
  double largest = 0;
  EXPECT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) {
    const Tensor& other = b.at(name);
    EXPECT_EQ(tensor.shape, other.shape) << name;
    double difference = 0;
    double size = 0;
    for (std::size_t i = 0; i < tensor.values.size(); ++i) {
      difference += std::pow(static_cast<double>(tensor.values[i] - other.values[i]), 2);
      size += std::pow(static_cast<double>(other.values[i]), 2);
    }
    if (size > 0) largest = std::max(largest, std::sqrt(difference / size));
  }
  return largest;
}

void expect_training_of_the_whole(Wanted wanted, const std::vector<int>& numbers_of_shards,
                                  double tolerance) {
  const int tensor = std::exchange(wanted.tensor, 1);
  const Network whole = network_of(wanted);
  const ReferenceRun expected = train(whole);
  wanted.tensor = tensor;
  for (const int shards : numbers_of_shards) {
    SCOPED_TRACE(shards);
    wanted.shards = shards;
    const Network network = network_of(wanted);
    EXPECT_EQ(network.parameter_count(), whole.parameter_count());
    const ReferenceRun run = train(network);
    for (std::size_t i = 0; i < expected.losses.size(); ++i) {
      EXPECT_NEAR(run.losses[i], expected.losses[i], tolerance);
      EXPECT_NEAR(run.norms[i], expected.norms[i], 10 * tolerance * expected.norms[i]);
    }
    EXPECT_LE(max_distance(whole_tensors(network, run.gradients), whole_tensors(whole, expected.gradients)),
              20 * tolerance);
  }
}

TEST(VocabularyShards, AddUpToTheSameTraining) {
  for (const int stages : {1, 2, 4}) {
    SCOPED_TRACE(stages);
    expect_training_of_the_whole({.stages = stages}, {1, 2, 3, 4}, 1e-6);
  }
  expect_training_of_the_whole({}, {257}, 1e-6);  // a token each
  expect_training_of_the_whole({.kind = "llama"}, {2, 3}, 1e-6);
}

TEST(VocabularyShards, MayBeTied) {
  expect_training_of_the_whole({.tied = true}, {2, 3}, 1e-6);
  expect_training_of_the_whole({.kind = "llama", .tied = true}, {3}, 1e-6);
}

TEST(VocabularyShards, GoWithShardsOfBlocks) { expect_training_of_the_whole({.tensor = 2}, {2, 3}, 1e-6); }

// The two numbers of a row are floats in any precision, so only the logits' gradient is rounded otherwise.
TEST(VocabularyShards, LoseNothingInBf16) {
  expect_training_of_the_whole({.precision = Precision::bf16}, {2, 3}, 1e-3);
}

TEST(VocabularyShards, HaveExactGradients) {
  const Network network = network_of({.shards = 3});
  for (const DerivativeCheck& check :
       check_derivatives(network, *data_for(network, 3), start_parameters(network, 1), 1)) {
    EXPECT_TRUE(check.agrees()) << check.parameter << ": " << check.passes << ", by differences "
                                << check.differences;
  }
}

// `verify` compares with the network that was never cut: the same losses and gradients, bit for bit.
TEST(VocabularyShards, AreVerifiedByTheWhole) {
  const Network whole = network_of({});
  const Network network = network_of({.shards = 3, .tensor = 2});
  const auto data = data_for(whole, 3);
  const ExpectedGradient expected = expected_gradient(whole, *data, start_parameters(whole, 1), 2, 0);
  const ExpectedGradient found = expected_gradient(network, *data, start_parameters(network, 1), 2, 0);
  EXPECT_EQ(found.losses, expected.losses);
  const auto floats = [](const std::vector<std::vector<double>>& sets) {
    std::vector<Floats> values;
    for (const std::vector<double>& set : sets) values.emplace_back(set.begin(), set.end());
    return values;
  };
  for (const auto values : {&ExpectedGradient::gradients, &ExpectedGradient::magnitudes})
    EXPECT_EQ(max_distance(whole_tensors(network, floats(found.*values)),
                           whole_tensors(whole, floats(expected.*values))),
              0);
}

TEST(VocabularyShards, StartAndAreSavedAsTheWhole) {
  for (const bool tied : {false, true}) {
    const auto saved = [&](int shards) {
      const Folder folder;
      const Network network = network_of({.shards = shards, .tied = tied});
      save_weights(folder / "w.safetensors", network, start_parameters(network, 7));
      return bytes_of(folder / "w.safetensors");
    };
    EXPECT_EQ(saved(3), saved(1));
    EXPECT_EQ(saved(4), saved(1));
  }
}

TEST(VocabularyShards, LoadTheFileOfTheWhole) {
  const Folder folder;
  const std::filesystem::path file = folder / "w.safetensors";
  const Network whole = network_of({});
  save_weights(file, whole, start_parameters(whole, 7));
  const Network network = network_of({.shards = 3});
  EXPECT_EQ(load_weights(file, network), start_parameters(network, 7));
  EXPECT_NO_THROW(check_weights(file, network));
}

// Three sources, which read the same tokens; a chain; three shards with the target; the loss.
TEST(VocabularyShards, ReadTokensAndTargets) {
  const Network network = network_of({.shards = 3, .precision = Precision::bf16});
  ASSERT_EQ(network.graph.size(), 3 + 2 + 3 + 1);
  EXPECT_EQ(network.whole_stages(), 2);
  EXPECT_EQ(network.shards(), 1);
  for (int s = 0; s < network.graph.size(); ++s) {
    const bool is_embedding = s < 3;
    const bool is_head = s >= 5 && s < 8;
    EXPECT_EQ(network.source_index(s), is_embedding ? 0 : -1);
    EXPECT_EQ(network.stages[index(s)].target_columns(), is_head ? 1U : 0U);
    EXPECT_EQ(network.parts[index(s)].detached, s < 3 || s > 4);
    if (is_head) {
      EXPECT_EQ(network.stages[index(s)].output_size(), 2 * 48U);
    }
  }
  EXPECT_TRUE(network.stages[3].adds_inputs());
  EXPECT_EQ(network.stages[8].input_columns(), (std::vector<std::size_t>{2, 2, 2}));
  EXPECT_EQ(network.stages[6].parameters()[0].label(), "lm_head.weight[85:171,0:32]");
}

// Cuts balance what is not shared out: four blocks on two stages are two and two, however large the head is.
TEST(VocabularyShards, LeaveTheBlocksInBalance) {
  ModelConfig config = small("gpt", {{"layers", 4}, {"hidden", 32}, {"vocabulary", 8192}});
  const auto blocks_of_first = [&](plan::ShardPlacement placement) {
    config.vocabulary = {.shards = 2, .placement = placement};
    const Network network = build_network(config, 1, 2);
    const auto attends = [](const StageOp& op) {
      return op.layer != nullptr && op.layer->input_columns() == 3 * op.layer->output_columns();
    };
    return std::ranges::count_if(network.stages[2].ops(), attends);
  };
  EXPECT_EQ(blocks_of_first(plan::ShardPlacement::all), 2);
  EXPECT_EQ(blocks_of_first(plan::ShardPlacement::last), 4);
}

TEST(VocabularyShards, AreRefusedWhereThereAreNone) {
  ModelConfig config;
  config.vocabulary.shards = 300;
  expect_input_error([&] { build_network(config, 1, 1); },
                     "schedule.vocabulary.shards: 300 is more than model.vocabulary, 256");
  config.vocabulary.shards = 2;
  expect_input_error(
      [&] { build_units(config, 1); },
      "schedule.vocabulary: units that are cut into shards can be neither measured nor partitioned");
  config.kind = "mlp";
  expect_input_error([&] { build_network(config, 1, 1); },
                     "schedule.vocabulary.shards: does not apply to model.kind mlp");
}

/// All passes of a shard of the head on a backend that checks every view.
TEST(VocabularyShards, KeepToTheirMemory) {
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    const Network network = network_of({.shards = 3, .precision = precision});
    const Stage& stage = network.stages[6];
    const CheckingBackend backend;
    const Floats parameters = rounded_weights(precision, random_floats(stage.parameter_size(), 1));
    Floats input(stage.input_size(0));
    const Floats numbers = random_floats(stage.rows() * 32, 2);
    if (precision == Precision::bf16) {
      round_to_bf16(numbers, input);
    } else {
      input = numbers;
    }
    Floats target(stage.rows());
    for (std::size_t r = 0; r < target.size(); ++r) target[r] = static_cast<float>(r * 5);
    const Floats gradient = random_floats(stage.output_size(), 3);
    Floats output(stage.output_size());
    Floats stash(stage.stash_size());
    Floats scratch(stage.scratch_size_without_stash());
    Floats input_gradient(stage.input_size(0));
    Floats gradient_stash(stage.gradient_stash_size());
    Floats split(stage.parameter_size());
    Floats fused(stage.parameter_size());
    const std::vector<ConstMemory> inputs = {input};
    const std::vector<ConstMemory> gradients = {gradient};
    const std::vector<Memory> input_gradients = {input_gradient};
    stage.forward(parameters, inputs, target, output, stash, scratch, backend);
    stage.backward({.parameters = parameters,
                    .stash = stash,
                    .output_gradients = gradients,
                    .loss_scale = 1,
                    .input_gradients = input_gradients,
                    .gradient_stash = gradient_stash,
                    .scratch = scratch},
                   backend);
    stage.backward_weights(stash, gradient_stash, split, scratch, backend);
    stage.backward({.parameters = parameters,
                    .stash = stash,
                    .output_gradients = gradients,
                    .loss_scale = 1,
                    .input_gradients = input_gradients,
                    .parameter_gradient = fused,
                    .scratch = scratch},
                   backend);
    EXPECT_EQ(split, fused);
    Floats without_stash(stage.output_size());
    stage.forward(parameters, inputs, target, without_stash, {}, scratch, backend);
    EXPECT_EQ(without_stash, output);
  }
}

}  // namespace
}  // namespace starpipe::model
