// SPDX-License-Identifier: Apache-2.0
// The network `llama`: tensors, start values, files, and its losses and gradients compared with Llama in
// NumPy.
#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include <cblas.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "model/gradients.hpp"
#include "model/named_parameters.hpp"
#include "model/reference.hpp"
#include "model/weights.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/model/dataset.hpp"
#include "starpipe/model/network.hpp"
#include "starpipe/model/safetensors.hpp"
#include "support/folder.hpp"
#include "support/message_of.hpp"
#include "support/networks.hpp"
#include "support/shell.hpp"

namespace starpipe::model {
namespace {

using namespace testing;

ModelConfig llama() {
  return small("llama", {{"hidden", 24}, {"intermediate", 20}, {"context", 12}, {"vocabulary", 17}});
}

/// Sequences in which each token follows from the one before.
class Sequences final : public Dataset {
 public:
  explicit Sequences(const Network& network)
      : rows_(network.stages[0].rows()),
        context_(index(option(network.config, "context"))),
        vocabulary_(option(network.config, "vocabulary")) {}

  void input(int step, int microbatch, int /*branch*/, std::span<float> out) const override {
    fill(step, microbatch, 0, out);
  }
  void target(int step, int microbatch, std::span<float> out) const override {
    fill(step, microbatch, 1, out);
  }
  [[nodiscard]] std::vector<std::uint64_t> offsets(int /*step*/, int /*microbatch*/) const override {
    return {};
  }
  [[nodiscard]] std::string sample_word() const override { return "tokens"; }
  [[nodiscard]] std::size_t samples_per_microbatch() const override { return rows_; }

 private:
  void fill(int step, int microbatch, std::size_t shift, std::span<float> out) const {
    std::mt19937 bits(static_cast<unsigned>(100 * step + microbatch));
    for (std::size_t r = 0; r < rows_; r += context_) {
      int token = static_cast<int>(bits() % static_cast<unsigned>(vocabulary_));
      for (std::size_t i = 0; i < context_ + 1; ++i) {
        if (i >= shift && i - shift < context_) out[r + i - shift] = static_cast<float>(token);
        token = (3 * token + 1) % vocabulary_;
      }
    }
  }

  std::size_t rows_;
  std::size_t context_;
  int vocabulary_;
};

ReferenceRun train_from(const Network& network, const std::vector<Floats>& start, double learning_rate,
                        int microbatches, int steps) {
  openblas_set_num_threads(1);
  OptimizerConfig optimizer;
  optimizer.learning_rate = learning_rate;
  return train_reference(network, Sequences(network), optimizer, start, microbatches, steps);
}

TEST(Llama, HasTheTensorsOfLlamaForCausalLm) {
  std::map<std::string, Shape> expected = {
      {"model.embed_tokens.weight", {17, 24}}, {"model.norm.weight", {24}}, {"lm_head.weight", {17, 24}}};
  for (const std::string block : {"model.layers.0.", "model.layers.1."}) {
    expected.insert({{block + "self_attn.q_proj.weight", {24, 24}},
                     {block + "self_attn.k_proj.weight", {12, 24}},
                     {block + "self_attn.v_proj.weight", {12, 24}},
                     {block + "self_attn.o_proj.weight", {24, 24}},
                     {block + "mlp.gate_proj.weight", {20, 24}},
                     {block + "mlp.up_proj.weight", {20, 24}},
                     {block + "mlp.down_proj.weight", {24, 20}},
                     {block + "input_layernorm.weight", {24}},
                     {block + "post_attention_layernorm.weight", {24}}});
  }
  for (const int stages : {1, 4}) EXPECT_EQ(shapes(build_network(llama(), 2, stages)), expected);
  // Llama-2-7B and Llama-3-8B, by their configurations and published numbers of parameters. A single layer
  // stands for all of them.
  ModelConfig large = with(llama(), {{"hidden", 4096}, {"heads", 32}});
  large.options["context"] = 1;
  large.options["layers"] = 1;
  const auto count = [](ModelConfig config, int kv_heads, int intermediate, int vocabulary) {
    config.options["kv_heads"] = kv_heads;
    config.options["intermediate"] = intermediate;
    config.options["vocabulary"] = vocabulary;
    const Network network = build_network(config, 1, 3);
    return network.parameter_count() + 31 * network.stages[1].parameter_size();
  };
  EXPECT_EQ(count(large, 0, 11008, 32000), 6'738'415'616u);
  EXPECT_EQ(count(large, 8, 14336, 128256), 8'030'261'248u);
}

TEST(Llama, StartsWithTheDistributionsOfLlama) {
  const Network network = build_network(with(llama(), {{"vocabulary", 500}}), 1, 1);
  for (const auto& [name, x] : by_name(network, start_parameters(network, 1))) {
    if (name.find("norm") != std::string::npos) {
      EXPECT_EQ(x, Floats(x.size(), 1.0f)) << name;
      continue;
    }
    double square = 0;
    for (const float value : x)
      square += std::pow(static_cast<double>(value), 2) / static_cast<double>(x.size());
    EXPECT_NEAR(std::sqrt(square), 0.02, 0.02 * 5 / std::sqrt(2.0 * static_cast<double>(x.size()))) << name;
  }
}

TEST(Llama, NamesBadConfigurations) {
  const auto refused = [](const char* key, OptionValue value, const std::string& part) {
    expect_input_error([&] { build_network(with(llama(), {{key, std::move(value)}}), 1, 1); }, part);
  };
  refused("heads", 5, "model.heads: 5 does not divide model.hidden, 24");
  refused("heads", 8, "model.heads: 8 heads of model.hidden, 24, have 3 columns each");
  refused("kv_heads", 3, "model.kv_heads: 3 does not divide model.heads, 4");
  refused("kv_heads", 8, "model.kv_heads: 8 does not divide model.heads, 4");
  refused("intermediate", 0, "model.intermediate: 0");
  refused("rope_theta", 0.0, "model.rope_theta: 0");
  refused("epsilon", -1e-6, "model.epsilon: -1e-06");
  refused("inputs", 1, "model.inputs: does not apply to model.kind llama");
}

TEST(Llama, ReadsFilesOfOtherForms) {
  const Folder folder;
  const Network network = build_network(llama(), 1, 2);
  const auto parameters = start_parameters(network, 5);
  save_weights(folder / "w", network, parameters);
  const auto changed = [&](auto change) {
    auto tensors = read_safetensors(folder / "w");
    change(tensors);
    write_safetensors(folder / "changed", tensors, {{"format", "pt"}});
    return folder / "changed";
  };
  const auto bare = changed([](auto& tensors) {
    std::map<std::string, Tensor> of_model;  // as LlamaModel saves them
    for (auto& [name, tensor] : tensors)
      of_model[name.starts_with("model.") ? name.substr(6) : name] = tensor;
    tensors = of_model;
  });
  EXPECT_EQ(load_weights(bare, network), parameters);
  const auto tied = changed([](auto& tensors) { tensors.erase("lm_head.weight"); });
  const auto loaded = by_name(network, load_weights(tied, network));
  EXPECT_EQ(loaded.at("lm_head.weight"), loaded.at("model.embed_tokens.weight"));
  const auto with_bias = changed([](auto& t) {
    t["model.layers.0.self_attn.q_proj.bias"] = {{24}, Floats(24)};
  });
  expect_input_error([&] { load_weights(with_bias, network); },
                     "tensor model.layers.0.self_attn.q_proj.bias: is not one of the model's");
  expect_input_error(
      [&] {
        load_weights(folder / "w", build_network(with(llama(), {{"epsilon", 1e-5}}), 1, 2));
      },
      "was saved with epsilon 1e-06, the configuration has 1e-05");
}

// No weight depends on them.
TEST(Llama, WeightsTakeAnyContextAndAngles) {
  const Folder folder;
  const Network network = build_network(llama(), 1, 2);
  const auto parameters = start_parameters(network, 5);
  save_weights(folder / "w", network, parameters);
  for (const auto& config : {with(llama(), {{"context", 3}}), with(llama(), {{"context", 50}}),
                             with(llama(), {{"rope_theta", 5e5}})})
    EXPECT_EQ(load_weights(folder / "w", build_network(config, 1, 2)), parameters);
}

TEST(Llama, CutsDoNotMatter) {
  const Network whole = build_network(llama(), 2, 1);
  const ReferenceRun one = train_from(whole, start_parameters(whole, 1), 1e-2, 3, 3);
  for (const int stages : {2, 4}) {
    const Network cut = build_network(llama(), 2, stages);
    const ReferenceRun run = train_from(cut, start_parameters(cut, 1), 1e-2, 3, 3);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(run.losses[i], one.losses[i], 1e-6);
    const auto expected = by_name(whole, one.gradients);
    for (const auto& [name, gradient] : by_name(cut, run.gradients)) {
      Floats difference = expected.at(name);
      for (std::size_t i = 0; i < gradient.size(); ++i) difference[i] -= gradient[i];
      EXPECT_LE(dot(difference, difference), 1e-12 * dot(gradient, gradient)) << name;
    }
  }
}

TEST(Llama, StartsAtTheLossOfChanceAndLearns) {
  const Network network = build_network(llama(), 4, 2);
  const ReferenceRun run = train_from(network, start_parameters(network, 1), 3e-3, 2, 80);
  EXPECT_NEAR(run.losses[0], std::log(17), 0.05 * std::log(17));
  EXPECT_LT(run.losses.back(), 0.1);  // each token follows from the one before
}

// Weights in a file as Hugging Face has it, random and large, so that every tensor matters.
TEST(Llama, LossesAndGradientsMatchLlamaInNumpy) {
  if (!have_numpy()) GTEST_SKIP() << "no NumPy in " STARPIPE_PYTHON;
  const Folder folder;
  ModelConfig config = llama();
  config.options["context"] = 70;  // more than one block of query rows
  config.options["rope_theta"] = 300.0;
  config.options["epsilon"] = 0.01;
  config.init = folder / "w.safetensors";
  const Network network = build_network(config, 2, 3);
  nlohmann::json job;
  for (const auto& option : config.options)
    std::visit([&](const auto& value) { job[option.first] = value; }, option.second);
  constexpr int steps = 3;
  const Sequences data(network);
  for (int step = 0; step < steps; ++step) {
    Floats input(140);
    Floats target(140);
    data.input(step, 0, 0, input);
    data.target(step, 0, target);
    job["batches"].push_back({{"input", std::vector<int>(input.begin(), input.end())},
                              {"target", std::vector<int>(target.begin(), target.end())}});
  }
  const auto run_numpy = [&](const std::string& action, const std::filesystem::path& weights) {
    const auto file = folder.write("job.json", job.dump());
    const ShellResult result = shell(STARPIPE_PYTHON " " STARPIPE_TEST_DIR "/networks/llama_numpy.py " +
                                     action + " " + file.string() + " " + weights.string());
    EXPECT_EQ(result.status, 0) << result.output;
    return result.output;
  };
  run_numpy("make", *config.init);
  const std::vector<Floats> parameters = start_parameters(network, 1);
  const ReferenceRun run = train_from(network, parameters, 0, 1, steps);
  save_weights(folder / "saved.safetensors", network, run.parameters);

  std::istringstream lines(run_numpy("run", folder / "saved.safetensors"));
  for (const double loss : run.losses) {
    double expected = 0;
    ASSERT_TRUE(lines >> expected);
    EXPECT_NEAR(loss, expected, 1e-6 * expected);
    EXPECT_GT(expected, 3.4);  // such weights predict badly: no agreement by chance at ln(17) = 2.8
  }
  const auto gradients = by_name(network, run.gradients);
  std::map<std::string, int> compared;
  std::string name;
  std::size_t at = 0;
  double expected = 0;
  while (lines >> name >> at >> expected) {
    const Floats& gradient = gradients.at(name);
    double largest = 0;
    for (const float value : gradient) largest = std::max(largest, std::abs(static_cast<double>(value)));
    EXPECT_NEAR(gradient.at(at), expected, 1e-5 * largest) << name << "[" << at << "]";
    ++compared[name];
  }
  EXPECT_EQ(compared.size(), gradients.size());
}

}  // namespace
}  // namespace starpipe::model
