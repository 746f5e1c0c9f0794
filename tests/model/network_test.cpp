// SPDX-License-Identifier: Apache-2.0
#include "starpipe/model/network.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "model/gradients.hpp"
#include "model/named_parameters.hpp"
#include "model/networks/language_model.hpp"
#include "support/message_of.hpp"
#include "support/networks.hpp"

namespace starpipe::model {
namespace {

using namespace testing;

ModelConfig gpt() { return small("gpt", {{"layers", 3}, {"context", 8}}); }

ModelConfig mlp(int branches) { return small("mlp", {{"inputs", 10}, {"branches", branches}}); }

std::map<std::string, Floats> values(const Network& network, std::uint64_t seed) {
  std::vector<Floats> all;
  for (const Stage& stage : network.stages) {
    all.push_back(initial_parameters(stage.parameters(), seed));
    EXPECT_EQ(all.back().size(), stage.parameter_size());
  }
  return by_name(network, all);
}

// The base class of language models alone.
class BareLanguageModel : public LanguageModel {
 public:
  explicit BareLanguageModel(const ModelConfig& config) : LanguageModel(config, 1) {}
  [[nodiscard]] bool tied() const { return is_tied(); }

 private:
  [[nodiscard]] Unit embedding() const override { return {}; }
  [[nodiscard]] StageOp norm(const std::string& /*name*/) const override { return residual_begin(); }
  [[nodiscard]] std::vector<std::vector<StageOp>> halves(int /*block*/,
                                                         const Shard& /*shard*/) const override {
    return {};
  }
  [[nodiscard]] Unit head() const override { return {}; }
};

TEST(LanguageModel, KeepsItsOwnConfiguration) {
  ModelConfig config = gpt();
  config.options["tied"] = true;
  const BareLanguageModel model(config);
  config.options["tied"] = false;
  EXPECT_TRUE(model.tied());
}

// Threads make parts of a large tensor.
TEST(InitialParameters, OfALargeTensorAreTheNumbersOfItsName) {
  ModelConfig config = gpt();
  config.options["layers"] = 1;
  config.options["hidden"] = 256;
  const Network network = build_network(config, 1, 1);
  const auto all = values(network, 7);
  const Floats& table = all.at("transformer.h.0.mlp.c_fc.weight");
  ASSERT_EQ(table.size(), 256U * 1024U);
  std::set<float> different(table.begin(), table.end());
  EXPECT_GT(different.size(), table.size() / 2);  // no part repeats another
  EXPECT_EQ(values(network, 7), all);
  EXPECT_NE(values(network, 8), all);
  EXPECT_NE(all.at("transformer.h.0.mlp.c_proj.weight"), table);
}

TEST(Gpt, HasTheTensorsOfGpt2LmHeadModel) {
  ModelConfig config = gpt();
  config.options["layers"] = 2;
  std::map<std::string, std::vector<std::size_t>> expected = {
      {"transformer.wte.weight", {256, 16}}, {"transformer.wpe.weight", {8, 16}},
      {"transformer.ln_f.weight", {16}},     {"transformer.ln_f.bias", {16}},
      {"lm_head.weight", {256, 16}},
  };
  for (const std::string block : {"transformer.h.0.", "transformer.h.1."}) {
    expected.insert({{block + "ln_1.weight", {16}},
                     {block + "ln_1.bias", {16}},
                     {block + "attn.c_attn.weight", {16, 48}},
                     {block + "attn.c_attn.bias", {48}},
                     {block + "attn.c_proj.weight", {16, 16}},
                     {block + "attn.c_proj.bias", {16}},
                     {block + "ln_2.weight", {16}},
                     {block + "ln_2.bias", {16}},
                     {block + "mlp.c_fc.weight", {16, 64}},
                     {block + "mlp.c_fc.bias", {64}},
                     {block + "mlp.c_proj.weight", {64, 16}},
                     {block + "mlp.c_proj.bias", {16}}});
  }
  for (const int stages : {1, 4}) EXPECT_EQ(shapes(build_network(config, 2, stages)), expected);
  const std::size_t block = 4 * 16 + 16 * 48 + 48 + 16 * 16 + 16 + 16 * 64 + 64 + 64 * 16 + 16;
  EXPECT_EQ(build_network(config, 2, 2).parameter_count(), 2 * 256 * 16 + 8 * 16 + 2 * block + 2 * 16);
}

TEST(Mlp, HasTheTensorsOfLinearLayers) {
  const std::map<std::string, std::vector<std::size_t>> chain = {
      {"layers.0.weight", {12, 10}}, {"layers.0.bias", {12}}, {"layers.1.weight", {12, 12}},
      {"layers.1.bias", {12}},       {"layers.2.bias", {12}}, {"layers.2.weight", {12, 12}},
      {"head.weight", {3, 12}},      {"head.bias", {3}},
  };
  EXPECT_EQ(shapes(build_network(mlp(1), 4, 2)), chain);
  const auto tree = shapes(build_network(mlp(2), 4, 3));
  EXPECT_EQ(tree.size(), 14u);
  EXPECT_EQ(tree.at("branches.1.layers.0.weight"), (std::vector<std::size_t>{12, 5}));
  EXPECT_EQ(tree.at("head.weight"), (std::vector<std::size_t>{3, 24}));
}

TEST(Network, ChainsAndTrees) {
  const Network chain = build_network(gpt(), 2, 4);
  EXPECT_EQ(chain.graph, plan::StageGraph::chain(4));
  EXPECT_EQ(chain.source_index(0), 0);
  EXPECT_EQ(chain.source_index(3), -1);
  EXPECT_TRUE(chain.stages[3].is_sink());
  EXPECT_EQ(chain.stages[0].rows(), 16u);
  EXPECT_EQ(chain.stages[0].input_columns(), std::vector<std::size_t>{1});
  EXPECT_EQ(chain.stages[1].input_columns(), std::vector<std::size_t>{16});

  const Network tree = build_network(mlp(2), 4, 5);
  EXPECT_EQ(tree.graph, plan::StageGraph(5, {{0, 1}, {1, 4}, {2, 3}, {3, 4}}));
  EXPECT_EQ(tree.source_index(0), 0);
  EXPECT_EQ(tree.source_index(1), -1);
  EXPECT_EQ(tree.source_index(2), 1);
  EXPECT_EQ(tree.source_index(4), -1);
  EXPECT_EQ(tree.stages[0].input_columns(), std::vector<std::size_t>{5});
  EXPECT_EQ(tree.stages[4].input_columns(), (std::vector<std::size_t>{12, 12}));
  EXPECT_TRUE(tree.stages[4].is_sink());
  // All branches are cut alike.
  EXPECT_EQ(tree.stages[0].parameter_size(), tree.stages[2].parameter_size());
  const Network uneven = build_network(mlp(2), 4, 5, {1});
  EXPECT_EQ(uneven.stages[0].parameters().size(), 2u);
  EXPECT_EQ(uneven.stages[1].parameters().size(), 4u);
  EXPECT_EQ(uneven.stages[2].parameters().size(), 2u);
}

TEST(Network, OneStageIsSourceAndSink) {
  const Network network = build_network(gpt(), 1, 1);
  EXPECT_EQ(network.stages.size(), 1u);
  EXPECT_EQ(network.source_index(0), 0);
  EXPECT_TRUE(network.stages[0].is_sink());
  EXPECT_EQ(network.stages[0].output_columns(), 0u);
  EXPECT_EQ(network.stages[0].target_columns(), 1u);
}

TEST(Network, CutsFallWhereTheyAreAsked) {
  // Units: embedding, three blocks, head.
  const Network network = build_network(gpt(), 1, 3, {1, 4});
  EXPECT_EQ(network.stages[0].parameters().size(), 2u);
  EXPECT_EQ(network.stages[1].parameters().size(), 36u);
  EXPECT_EQ(network.stages[2].parameters().size(), 3u);
}

TEST(Network, AutomaticCutsHaveTheSmallestLargestShare) {
  ModelConfig config = gpt();
  config.options["layers"] = 6;
  for (int stages = 1; stages <= 8; ++stages) {
    const auto largest = [](const Network& network) {
      double max = 0;
      for (const Stage& stage : network.stages) max = std::max(max, stage.flops());
      return max;
    };
    const double found = largest(build_network(config, 1, stages));
    // All ways to choose stages - 1 of the 7 cuts.
    double best = std::numeric_limits<double>::infinity();
    for (unsigned chosen = 0; chosen < 1u << 7; ++chosen) {
      std::vector<int> cuts;
      for (int cut = 1; cut <= 7; ++cut) {
        if ((chosen >> (cut - 1) & 1u) != 0) cuts.push_back(cut);
      }
      if (static_cast<int>(cuts.size()) != stages - 1 || cuts.empty()) continue;
      best = std::min(best, largest(build_network(config, 1, stages, cuts)));
    }
    if (stages > 1) {
      EXPECT_DOUBLE_EQ(found, best) << stages << " stages";
    }
  }
  // Where the largest share leaves a choice, the others are even: the wide head is the bottleneck.
  config.options["hidden"] = 4;
  config.options["heads"] = 1;
  config.options["layers"] = 2;  // both blocks together cost less than the head
  config.options["context"] = 2;
  const Network even = build_network(config, 1, 3);
  EXPECT_EQ(even.stages[2].parameters().size(), 3u);
  EXPECT_EQ(even.stages[0].parameters().size(), 2u + 12);
}

TEST(Network, UnitsHaveNames) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(unit_names(gpt()), Names({"embedding", "block 0", "block 1", "block 2", "head"}));
  EXPECT_EQ(unit_names(mlp(1)), Names({"layer 0", "layer 1", "layer 2", "head"}));
  EXPECT_EQ(unit_names(mlp(2)), Names({"layer 0", "layer 1", "layer 2"}));
}

TEST(Network, SizesAreBytes) {
  const Network network = build_network(gpt(), 2, 2, {1});
  const std::vector<plan::StageSizes> sizes = network.sizes();
  ASSERT_EQ(sizes.size(), 2u);
  EXPECT_EQ(sizes[0].activation, 4u * 16 * 16);
  EXPECT_EQ(sizes[0].gradient, sizes[0].activation);
  EXPECT_EQ(sizes[0].stash, 4u * 16);  // token ids
  EXPECT_EQ(sizes[0].gradient_stash, 4u * 16 * 16);
  EXPECT_EQ(sizes[0].weights, 4u * (256 * 16 + 8 * 16));
  EXPECT_EQ(sizes[1].activation, 0u);  // the sink has no output for others
  EXPECT_EQ(sizes[1].stash, 4 * network.stages[1].stash_size());
}

TEST(Network, BadConfigurationsAreNamed) {
  const auto refused = [](ModelConfig config, int microbatch_size, int stages, const std::vector<int>& cuts,
                          const std::string& part) {
    expect_input_error([&] { build_network(config, microbatch_size, stages, cuts); }, part);
  };
  const auto with = [](ModelConfig config, const char* key, int value) {
    config.options[key] = value;
    return config;
  };
  ModelConfig other = gpt();
  other.kind = "rnn";
  refused(other, 1, 1, {}, "model.kind: rnn is not one of gpt, llama, mlp");
  refused(with(gpt(), "heads", 3), 1, 1, {}, "model.heads: 3 does not divide model.hidden");
  refused(with(gpt(), "heads", 0), 1, 1, {}, "model.heads: 0");
  refused(with(gpt(), "layers", 0), 1, 1, {}, "model.layers: 0");
  refused(with(gpt(), "hidden", -4), 1, 1, {}, "model.hidden: -4");
  refused(with(gpt(), "context", 0), 1, 1, {}, "model.context: 0");
  refused(with(gpt(), "context", 1 << 20), 1 << 20, 1, {}, "training.microbatch_size");
  refused(with(mlp(1), "inputs", 0), 1, 1, {}, "model.inputs: 0");
  refused(with(mlp(1), "outputs", 0), 1, 1, {}, "model.outputs: 0");
  refused(mlp(0), 1, 1, {}, "model.branches: 0");
  refused(mlp(3), 1, 4, {}, "model.branches: 3 does not divide model.inputs");
  refused(with(gpt(), "inputs", 1), 1, 1, {}, "model.inputs: does not apply to model.kind gpt");
  refused(gpt(), 0, 1, {}, "training.microbatch_size: 0");
  refused(gpt(), 1, 0, {}, "schedule.stages: 0");
  refused(gpt(), 1, 6, {}, "schedule.stages: 6 is not between 1 and 5");
  refused(gpt(), 1, 3, {1}, "schedule.cuts: 1 cuts make 2 stages, not 3");
  refused(gpt(), 1, 1, {1}, "schedule.cuts");
  refused(gpt(), 1, 3, {2, 2}, "schedule.cuts: 2 is not ascending");
  refused(gpt(), 1, 2, {0}, "schedule.cuts: 0");
  refused(gpt(), 1, 2, {5}, "schedule.cuts: 5");
  refused(mlp(2), 1, 4, {}, "schedule.stages: with model.branches 2 must be 2 * n + 1");
  refused(mlp(2), 1, 1, {}, "schedule.stages: with model.branches 2");
  refused(mlp(2), 1, 9, {}, "with n from 1 to 3, not 9");
}

TEST(InitialParameters, DependOnSeedAndNameAlone) {
  const auto one = values(build_network(gpt(), 1, 1), 7);
  EXPECT_EQ(values(build_network(gpt(), 3, 5), 7), one);
  EXPECT_EQ(values(build_network(gpt(), 1, 3, {2, 4}), 7), one);
  const auto other = values(build_network(gpt(), 1, 1), 8);
  EXPECT_NE(other.at("lm_head.weight"), one.at("lm_head.weight"));
  // The upper half of the seed counts too.
  EXPECT_NE(values(build_network(gpt(), 1, 1), 7 + (std::uint64_t{1} << 40)).at("lm_head.weight"),
            one.at("lm_head.weight"));
  EXPECT_NE(one.at("transformer.h.0.attn.c_attn.weight"), one.at("transformer.h.1.attn.c_attn.weight"));
  const auto tree = values(build_network(mlp(2), 1, 3), 7);
  EXPECT_EQ(values(build_network(mlp(2), 1, 7), 7), tree);
  EXPECT_NE(tree.at("branches.0.layers.1.weight"), tree.at("branches.1.layers.1.weight"));
}

TEST(InitialParameters, HaveTheDistributionsOfGpt2) {
  ModelConfig config = gpt();
  config.options["hidden"] = 64;
  config.options["layers"] = 8;
  for (const auto& [name, x] : values(build_network(config, 1, 1), 1)) {
    double mean = 0;
    double square = 0;
    for (const float value : x) {
      mean += static_cast<double>(value) / static_cast<double>(x.size());
      square += std::pow(static_cast<double>(value), 2) / static_cast<double>(x.size());
    }
    const double deviation = std::sqrt(square - mean * mean);
    if (name.ends_with(".bias")) {
      EXPECT_EQ(square, 0) << name;
    } else if (name.find(".ln_") != std::string::npos) {
      EXPECT_EQ(*std::min_element(x.begin(), x.end()), 1) << name;
      EXPECT_EQ(*std::max_element(x.begin(), x.end()), 1) << name;
    } else {
      const double expected = name.ends_with("c_proj.weight") ? 0.02 / 4 : 0.02;
      EXPECT_NEAR(deviation, expected, expected * 5 / std::sqrt(2.0 * x.size())) << name;
      EXPECT_NEAR(mean, 0, expected * 5 / std::sqrt(x.size())) << name;
    }
  }
}

}  // namespace
}  // namespace starpipe::model
