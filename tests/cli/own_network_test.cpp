// SPDX-License-Identifier: Apache-2.0
// A network that a user registers: keys of every type, and text as data.
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cli/input/input_files.hpp"
#include "model/reference.hpp"
#include "model/weights.hpp"
#include "runtime/config/config_keys.hpp"
#include "runtime/setup/experiment.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/base/registration.hpp"
#include "starpipe/model/network_registry.hpp"
#include "support/folder.hpp"
#include "support/message_of.hpp"

namespace starpipe::cli {
namespace {

using model::NetworkKey;

/// Bytes to next bytes: an embedding, `mixers` times a linear layer, maybe with GELU, and a head.
model::UnitGraph units(const model::ModelConfig& config, std::size_t microbatch_size) {
  const auto context = model::option(config, "context");
  const std::size_t rows = microbatch_size * index(context);
  const std::size_t width = 8;
  const double deviation = model::option<double>(config, "spread");
  const auto layer = [&](const model::LayerSpec& spec) { return model::layer_op(spec, config.precision); };
  const auto linear = [&](const std::string& name, std::size_t inputs, double outputs) {
    return layer({"linear", name, rows, inputs, {{"outputs", outputs}, {"deviation", deviation}}});
  };
  std::vector<model::Unit> chain;
  chain.push_back({"embedding",
                   {layer({"embedding",
                           "bytes",
                           rows,
                           1,
                           {{"vocabulary", 256},
                            {"context", static_cast<double>(context)},
                            {"outputs", static_cast<double>(width)},
                            {"deviation", deviation}}})}});
  for (int n = 0; n < model::option(config, "mixers"); ++n) {
    const std::string name = model::option<std::string>(config, "prefix") + std::to_string(n);
    model::Unit unit = {"mixer", {linear(name, width, static_cast<double>(width))}};
    if (model::option<std::string>(config, "activation") == "gelu") {
      unit.ops.push_back(layer({"gelu", name, rows, width, {}}));
    }
    if (model::option<bool>(config, "residual")) {
      unit.ops.insert(unit.ops.begin(), model::residual_begin());
      unit.ops.push_back(model::residual_end());
    }
    chain.push_back(std::move(unit));
  }
  chain.push_back({"head", {linear("head", width, 256)}});
  model::UnitGraph graph;
  graph.rows = rows;
  graph.branches = {std::move(chain)};
  graph.branch_inputs = 1;
  graph.loss = model::make_loss("cross_entropy", rows, 256, config.precision);
  return graph;
}

model::NetworkKind kind_named(const std::string& name, std::vector<NetworkKey> keys) {
  return {.name = name, .meaning = "Mixes bytes.", .data = {"text"}, .keys = std::move(keys), .units = units};
}

const bool registered = model::register_network(
    kind_named("mixer", {{"mixers", 2, "Mixing layers.", model::from_1_to(64)},
                         {"spread", 0.02, "Standard deviation of start values.", {.min = 0, .above = true}},
                         {"residual", true, "True if mixers add to their input."},
                         {"activation", std::string("gelu"), "After each mixer.", {}, {"none", "gelu"}},
                         {"prefix", std::string("mix."), "Start of the names of weights."},
                         {"context", 16, "Tokens of a sequence.", model::from_1_to(1024)}}));

/// Two towers, each of a linear layer. `shares`: how many parts of the inputs there are, of which each reads
/// one.
model::UnitGraph towers(const model::ModelConfig& config, std::size_t rows) {
  const auto linear = [&](const std::string& name, std::size_t inputs, double outputs) {
    return model::layer_op({"linear", name, rows, inputs, {{"outputs", outputs}}}, config.precision);
  };
  model::UnitGraph graph;
  graph.rows = rows;
  graph.branch_inputs = index(model::option(config, "inputs") / model::option(config, "shares"));
  for (const char* name : {"left", "right"})
    graph.branches.push_back({{"tower", {linear(name, graph.branch_inputs, 3)}}});
  const int columns = model::option(config, "columns");
  graph.join = model::Unit{"head", {linear("head", 6, columns)}};
  graph.loss = model::make_loss("mse", rows, index(columns), config.precision);
  return graph;
}

const NetworkKey inputs = {"inputs", 4, "Features.", model::from_1_to(1 << 20)};
const NetworkKey outputs = {"outputs", 4, "Targets.", model::from_1_to(1 << 20)};
const NetworkKey shares = {"shares", 2, "Parts of the inputs.", model::from_1_to(2)};
const NetworkKey columns = {"columns", 4, "Of the head.", model::from_1_to(8)};
const NetworkKey branches = {"branches", 2, "Sources.", model::from_1_to(1 << 10)};
const bool has_towers = model::register_network({.name = "towers",
                                                 .meaning = "Two towers.",
                                                 .data = {"synthetic"},
                                                 .keys = {inputs, outputs, shares, columns, branches},
                                                 .units = towers});
const bool has_more_towers = model::register_network({.name = "towers without the key branches",
                                                      .meaning = "Two towers.",
                                                      .data = {"synthetic"},
                                                      .keys = {inputs, outputs, shares, columns},
                                                      .units = towers});

class OwnNetwork : public ::testing::Test {
 protected:
  void SetUp() override { folder_.write("text", std::string(300, 'a') + std::string(300, 'b')); }

  runtime::Config load(const std::vector<std::string>& overrides = {}) {
    const std::string text =
        "model: {kind: mixer, mixers: 3, spread: 0.5, residual: false, activation: none, prefix: m, "
        "context: 8}\n"
        "data: {path: " +
        (folder_ / "text").string() +
        "}\n"
        "training: {steps: 1, microbatches: 2}\n"
        "schedule: {name: 1f1b, workers: 2}\n";
    return load_config(folder_.write("c.yaml", text), overrides);
  }
  std::string problem(const std::string& override) {
    return message_of([&] { load({override}); });
  }

  const Folder folder_;
};

TEST_F(OwnNetwork, ReadsKeysOfEveryType) {
  const runtime::Config config = load();
  EXPECT_EQ(model::option(config.model, "mixers"), 3);
  EXPECT_EQ(model::option<double>(config.model, "spread"), 0.5);
  EXPECT_FALSE(model::option<bool>(config.model, "residual"));
  EXPECT_EQ(model::option<std::string>(config.model, "activation"), "none");
  EXPECT_EQ(model::option<std::string>(config.model, "prefix"), "m");
  EXPECT_EQ(config.data.kind, "text") << "the network's";
}

TEST_F(OwnNetwork, RefusesValuesThatAKeyDoesNotHave) {
  EXPECT_EQ(problem("model.mixers=65"), "--set model.mixers: must be at most 64, got 65");
  EXPECT_EQ(problem("model.spread=0"), "--set model.spread: must be greater than 0, got 0");
  EXPECT_EQ(problem("model.residual=3"), "--set model.residual: expected true or false, got '3'");
  EXPECT_EQ(problem("model.activation=relu"), "--set model.activation: 'relu' is not one of none, gelu");
  EXPECT_EQ(problem("model.heads=2"), "--set model.heads: does not apply to model.kind mixer");
}

TEST_F(OwnNetwork, ReportsAndHelpHaveItsKeys) {
  const nlohmann::ordered_json written = runtime::config_json(load());
  EXPECT_EQ(written["model"].dump(),
            R"({"kind":"mixer","context":8,"mixers":3,"spread":0.5,"residual":false,"activation":"none",)"
            R"("prefix":"m"})");
  std::ofstream(folder_ / "again.yaml") << written.dump();
  EXPECT_EQ(runtime::config_json(load_config(folder_ / "again.yaml", {})), written);
  const std::string help = runtime::describe_keys(runtime::config_keys());
  EXPECT_THAT(help, ::testing::HasSubstr("model.activation: none, gelu (default: gelu)"));
  EXPECT_THAT(help, ::testing::HasSubstr("model.spread: a number, greater than 0 (default: 0.02)"));
  EXPECT_THAT(help, ::testing::HasSubstr("mixer: Mixes bytes."));
}

TEST_F(OwnNetwork, ReadsText) {
  const runtime::Config config = load({"model.residual=true"});
  const runtime::Experiment experiment = runtime::make_experiment(config);
  EXPECT_EQ(experiment.network.stages.size(), 2U);
  EXPECT_EQ(experiment.data->sample_word(), "tokens");
  std::vector<float> tokens(8);
  experiment.data->input(0, 0, 0, tokens);
  EXPECT_THAT(tokens, ::testing::Each(::testing::AnyOf('a', 'b')));
  EXPECT_EQ(experiment.network.stages[1].loss()->target_columns(), 1U);
}

TEST_F(OwnNetwork, IsRefusedWhereTheDataHaveOtherSizes) {
  const auto refusal = [&](const std::string& kind, const std::vector<std::string>& overrides) {
    std::ofstream(folder_ / "t.yaml") << "model: {kind: " << kind
                                      << "}\ntraining: {steps: 1, microbatches: 2, microbatch_size: 3}\n"
                                         "schedule: {name: naive, workers: 3, stages: 3}\n";
    const runtime::Config config = load_config(folder_ / "t.yaml", overrides);
    std::string message = message_of([&] { runtime::make_experiment(config); });
    if (!message.empty()) {
      EXPECT_THROW(runtime::check_for_profile(config), InputError);
    }
    return message;
  };
  EXPECT_EQ(refusal("towers", {}), "");
  EXPECT_EQ(refusal("towers", {"model.shares=1"}),
            "model.kind: the source 0 of towers reads 3 x 4 of a micro-batch, data.kind synthetic has 3 x 2");
  EXPECT_EQ(refusal("towers", {"model.columns=5"}),
            "model.kind: the sink of towers reads 3 x 5 of a micro-batch, data.kind synthetic has 3 x 4");
  const std::string without_key = "towers without the key branches";
  EXPECT_EQ(refusal(without_key, {}), "model.kind: the source 0 of " + without_key +
                                          " reads 3 x 2 of a micro-batch, data.kind synthetic has 3 x 4");
  EXPECT_EQ(refusal(without_key, {"model.shares=1"}),
            "model.kind: " + without_key + " has 2 sources, data.kind synthetic is for 1 (model.branches)");
}

TEST_F(OwnNetwork, SavesItsKeysWithItsWeights) {
  const model::Network network = model::build_network(load().model, 1, 2);
  const auto parameters = model::start_parameters(network, 1);
  model::save_weights(folder_ / "w", network, parameters);
  EXPECT_EQ(model::load_weights(folder_ / "w", network), parameters);
  const model::Network other = model::build_network(load({"model.spread=0.25"}).model, 1, 2);
  EXPECT_THROW(model::load_weights(folder_ / "w", other), InputError);
}

TEST(RegisterNetwork, RefusesKeysThatCannotWork) {
  const NetworkKey context = {"context", 16, "Tokens.", model::from_1_to(64)};
  const auto refuse = [](std::vector<NetworkKey> keys, const std::string& part) {
    EXPECT_FALSE(model::register_network(kind_named("broken", std::move(keys))));
    EXPECT_THAT(take_registration_errors(), ::testing::ElementsAre(::testing::HasSubstr(part)));
  };
  refuse({context, {"depth", 0, "Depth.", model::from_1_to(4)}},
         "key depth: the default 0 is not at least 1");
  refuse({context, {"act", std::string("x"), "Which.", {}, {"y"}}}, "key act: the default x is not one of y");
  refuse({context, {"layers", 0.5, "Layers."}}, "key layers: has another type in network gpt");
  refuse({}, "data text needs a whole number as key context");
  const auto refuse_data = [](std::vector<std::string> data, const std::string& part) {
    EXPECT_FALSE(model::register_network(
        {.name = "broken", .meaning = "", .data = std::move(data), .keys = {}, .units = units}));
    EXPECT_THAT(take_registration_errors(), ::testing::ElementsAre(::testing::HasSubstr(part)));
  };
  refuse_data({}, "it names no data");
  refuse_data({"images"}, "data images is not one of text, tokens, synthetic");
}

}  // namespace
}  // namespace starpipe::cli
