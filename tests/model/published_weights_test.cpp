// SPDX-License-Identifier: Apache-2.0
// GPT-2's weights in the files that Hugging Face publishes: the tensors of a GPT2Model without a prefix, with
// causal masks, and without the head, which is tied to the token embedding.
#include <cmath>
#include <sstream>

#include <cblas.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "model/data/make_dataset.hpp"
#include "model/gradients.hpp"
#include "model/reference.hpp"
#include "model/weights.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/model/safetensors.hpp"
#include "support/folder.hpp"
#include "support/message_of.hpp"
#include "support/shell.hpp"

namespace starpipe::model {
namespace {

using namespace testing;
using Shapes = std::map<std::string, std::vector<std::size_t>>;

struct Size {
  std::size_t layers, hidden, heads, context, vocabulary;
};
constexpr Size gpt2 = {12, 768, 12, 1024, 50257};  // the smallest GPT-2, 124 million parameters
constexpr Size tiny = {2, 24, 4, 10, 301};

/// Names and shapes as published, without masks.
Shapes published(const Size& size) {
  const std::size_t width = size.hidden;
  Shapes shapes = {{"wte.weight", {size.vocabulary, width}},
                   {"wpe.weight", {size.context, width}},
                   {"ln_f.weight", {width}},
                   {"ln_f.bias", {width}}};
  const Shapes block = {{"ln_1.weight", {width}},
                        {"ln_1.bias", {width}},
                        {"attn.c_attn.weight", {width, 3 * width}},
                        {"attn.c_attn.bias", {3 * width}},
                        {"attn.c_proj.weight", {width, width}},
                        {"attn.c_proj.bias", {width}},
                        {"ln_2.weight", {width}},
                        {"ln_2.bias", {width}},
                        {"mlp.c_fc.weight", {width, 4 * width}},
                        {"mlp.c_fc.bias", {4 * width}},
                        {"mlp.c_proj.weight", {4 * width, width}},
                        {"mlp.c_proj.bias", {width}}};
  for (std::size_t n = 0; n < size.layers; ++n) {
    for (const auto& [name, shape] : block) shapes["h." + std::to_string(n) + "." + name] = shape;
  }
  return shapes;
}

std::size_t product(const std::vector<std::size_t>& shape) {
  std::size_t count = 1;
  for (const std::size_t extent : shape) count *= extent;
  return count;
}

/// Multiples of 1/512 that differ from tensor to tensor and from place to place.
Floats numbered(const std::string& name, std::size_t count) {
  const std::size_t start = std::hash<std::string>()(name) % 509;
  Floats values(count);
  std::size_t number = start;
  for (float& value : values) {
    value = static_cast<float>(number) / 512.0F - 1.0F;
    number = (number + 31) % 1021;
  }
  return values;
}

/// Writes a file as published, with values by name and size.
template <class Values>
void write_published(const std::filesystem::path& file, const Size& size, Values values,
                     const std::string& prefix = "") {
  std::map<std::string, Tensor> tensors;
  for (const auto& [name, shape] : published(size))
    tensors[prefix + name] = {shape, values(name, product(shape))};
  for (std::size_t n = 0; n < size.layers; ++n) {
    const std::string attention = prefix + "h." + std::to_string(n) + ".attn.";
    tensors[attention + "bias"] = {{1, 1, size.context, size.context},
                                   Floats(size.context * size.context, 1)};
    tensors[attention + "masked_bias"] = {{}, {-1e4F}};
  }
  write_safetensors(file, tensors, {{"format", "pt"}});
}

ModelConfig config_of(const Size& size, std::size_t vocabulary) {
  ModelConfig config;
  const auto set = [&](const char* key, std::size_t value) { config.options[key] = static_cast<int>(value); };
  set("layers", size.layers);
  set("hidden", size.hidden);
  set("heads", size.heads);
  set("context", size.context);
  set("vocabulary", vocabulary);
  return config;
}

/// All parameters by name.
std::map<std::string, Tensor> by_name(const Network& network, const std::vector<Floats>& parameters) {
  std::map<std::string, Tensor> tensors;
  const std::vector<ParameterSet> sets = network.sets();
  for (std::size_t s = 0; s < parameters.size(); ++s) {
    auto at = parameters[s].begin();
    for (const Parameter& parameter : sets[s].parameters) {
      const auto end = at + static_cast<std::ptrdiff_t>(parameter.size());
      tensors[parameter.name] = {parameter.shape, Floats(at, end)};
      at = end;
    }
  }
  return tensors;
}

TEST(PublishedWeights, HaveTheNamesAndShapesOfGpt2) {
  const Network network = build_network(config_of(gpt2, gpt2.vocabulary), 1, 4);
  Shapes expected = {{"lm_head.weight", {50257, 768}}};
  for (const auto& [name, shape] : published(gpt2)) expected["transformer." + name] = shape;
  Shapes shapes;
  for (const Stage& stage : network.stages) {
    for (const Parameter& parameter : stage.parameters()) shapes[parameter.name] = parameter.shape;
  }
  EXPECT_EQ(shapes, expected);
  EXPECT_EQ(network.parameter_count() - std::size_t{50257} * 768, 124'439'808U);  // as published
}

/// Expects that `values` are the file's token embedding, and then the mean of its rows in each row.
void expect_table(const Floats& values, const Size& size, std::size_t rows) {
  const Floats in_file = numbered("wte.weight", size.vocabulary * size.hidden);
  ASSERT_EQ(values.size(), rows * size.hidden);
  EXPECT_TRUE(std::equal(in_file.begin(), in_file.end(), values.begin()));
  std::vector<double> sums(size.hidden);
  for (std::size_t i = 0, column = 0; i < in_file.size();
       ++i, column = column + 1 == size.hidden ? 0 : column + 1) {
    sums[column] += in_file[i];
  }
  for (std::size_t i = in_file.size(); i < values.size(); ++i) {
    ASSERT_NEAR(values[i], sums[i % size.hidden] / static_cast<double>(size.vocabulary), 1e-6);
  }
}

/// Expects that each value of the file is where the network has it.
void expect_values(const Network& network, const std::vector<Floats>& parameters, const Size& size) {
  const std::size_t rows = index(option(network.config, "vocabulary"));
  for (const auto& [name, tensor] : by_name(network, parameters)) {
    SCOPED_TRACE(name);
    if (name == "transformer.wte.weight" || name == "lm_head.weight") {
      expect_table(tensor.values, size, rows);
    } else {
      const std::string in_file = name.substr(std::string("transformer.").size());
      EXPECT_TRUE(tensor.values == numbered(in_file, product(tensor.shape)));
    }
  }
}

TEST(PublishedWeights, LoadUnmodified) {
  const Folder folder;
  for (const std::string prefix : {"", "transformer."}) {
    write_published(folder / "model.safetensors", tiny, numbered, prefix);
    for (const std::size_t vocabulary : {tiny.vocabulary, tiny.vocabulary + 19}) {
      ModelConfig config = config_of(tiny, vocabulary);
      config.init = folder / "model.safetensors";
      const Network network = build_network(config, 1, 3);
      expect_values(network, start_parameters(network, 1), tiny);
    }
  }
}

// All blocks, tokens and positions of GPT-2, an eighth of its columns, and 47 more tokens, as nanoGPT and
// llm.c pad them.
TEST(PublishedWeights, LoadIntoAPaddedVocabulary) {
  const Folder folder;
  const Size narrow = {gpt2.layers, gpt2.hidden / 8, gpt2.heads, gpt2.context, gpt2.vocabulary};
  write_published(folder / "model.safetensors", narrow, numbered);
  const Network network = build_network(config_of(narrow, 50304), 1, 5);
  expect_values(network, load_weights(folder / "model.safetensors", network), narrow);
}

TEST(PublishedWeights, MasksMayHaveAnyType) {
  const Folder folder;
  const auto script = folder.write("mask.py", R"(
import json, struct, sys
data = open(sys.argv[1], 'rb').read()
start = 8 + struct.unpack('<Q', data[:8])[0]
header = json.loads(data[8:start])
size = len(data) - start
header['h.0.attn.bias'] = {'dtype': 'BOOL', 'shape': [1, 1, 2, 2], 'data_offsets': [size, size + 4]}
header['transformer.h.1.attn.masked_bias'] = {'dtype': 'F64', 'shape': [], 'data_offsets': [size + 4, size + 12]}
text = json.dumps(header).encode()
open(sys.argv[2], 'wb').write(struct.pack('<Q', len(text)) + text + data[start:] + bytes(12))
)");
  const Network network = build_network(config_of(tiny, tiny.vocabulary), 1, 1);
  const auto parameters = start_parameters(network, 1);
  save_weights(folder / "w", network, parameters);
  const ShellResult result = shell(STARPIPE_PYTHON " " + script.string() + " " + (folder / "w").string() +
                                   " " + (folder / "masked").string());
  ASSERT_EQ(result.status, 0) << result.output;
  EXPECT_EQ(load_weights(folder / "masked", network), parameters);
}

TEST(PublishedWeights, MoreTokensThanTheVocabularyAreRefused) {
  const Folder folder;
  write_published(folder / "w", tiny, numbered);
  const Network network = build_network(config_of(tiny, tiny.vocabulary - 1), 1, 1);
  expect_input_error([&] { load_weights(folder / "w", network); },
                     "tensor transformer.wte.weight: has shape [301, 24], the model has [300, 24]");
}

// What starpipe has saved may be padded later, too. Its metadata has the smaller vocabulary.
TEST(PublishedWeights, SavedOnesMayBePadded) {
  const Folder folder;
  const Network network = build_network(config_of(tiny, tiny.vocabulary), 1, 2);
  write_published(folder / "w", tiny, numbered);
  save_weights(folder / "saved", network, load_weights(folder / "w", network));
  const Network padded = build_network(config_of(tiny, 320), 1, 3);
  EXPECT_EQ(load_weights(folder / "saved", padded), load_weights(folder / "w", padded));
}

ModelConfig tied(ModelConfig config) {
  config.options["tied"] = true;
  return config;
}

TEST(PublishedWeights, ATiedModelHasThePublishedTensorsAlone) {
  const Network network = build_network(tied(config_of(gpt2, gpt2.vocabulary)), 1, 4);
  EXPECT_EQ(network.parameter_count(), 124'439'808U);  // as published
  Shapes expected;
  for (const auto& [name, shape] : published(gpt2)) expected["transformer." + name] = shape;
  Shapes shapes;
  for (const ParameterSet& set : network.sets()) {
    for (const Parameter& parameter : set.parameters) shapes[parameter.name] = parameter.shape;
  }
  EXPECT_EQ(shapes, expected);
  EXPECT_EQ(network.sets().back().stages, (std::vector<int>{0, 3}));
}

TEST(PublishedWeights, ATiedModelLoadsAndSavesThemAsTheyAre) {
  const Folder folder;
  write_published(folder / "w", tiny, numbered);
  for (const int stages : {1, 3}) {
    const Network network = build_network(tied(config_of(tiny, tiny.vocabulary)), 1, stages);
    const auto parameters = load_weights(folder / "w", network);
    expect_values(network, parameters, tiny);
    save_weights(folder / "saved", network, parameters);
    const auto saved = read_safetensors(folder / "saved");
    EXPECT_FALSE(saved.contains("lm_head.weight"));
    EXPECT_EQ(saved.size(), published(tiny).size());
    EXPECT_EQ(load_weights(folder / "saved", network), parameters);
    const Network padded = build_network(tied(config_of(tiny, 320)), 1, stages);
    expect_values(padded, load_weights(folder / "saved", padded), tiny);
  }
}

TEST(PublishedWeights, ATiedModelTakesAHeadThatEqualsTheEmbeddingOnly) {
  const Folder folder;
  write_published(folder / "w", tiny, numbered);
  const Network untied = build_network(config_of(tiny, tiny.vocabulary), 1, 2);
  const Network network = build_network(tied(config_of(tiny, tiny.vocabulary)), 1, 2);
  save_weights(folder / "copy", untied, load_weights(folder / "w", untied));
  EXPECT_EQ(load_weights(folder / "copy", network), load_weights(folder / "w", network));
  auto tensors = read_safetensors(folder / "copy");
  tensors.at("lm_head.weight").values.back() += 1;
  write_safetensors(folder / "other", tensors, {{"format", "pt"}});
  expect_input_error(
      [&] { load_weights(folder / "other", network); },
      "other: tensor lm_head.weight: is not equal to transformer.wte.weight; set model.tied: false");
}

// A step of the tied model adds the gradients of the embedding and the head, which a model that is not tied
// keeps apart.
TEST(PublishedWeights, TheTiedGradientIsTheSumOfBoth) {
  const Folder folder;
  std::uint64_t seed = 1;
  const ModelConfig config = config_of(tiny, 256);
  Size shorter = tiny;
  shorter.vocabulary = 256;
  write_published(folder / "w", shorter,
                  [&](const std::string&, std::size_t count) { return random_floats(count, ++seed, 0.3); });
  folder.write("text", std::string(4000, 'a') + "some other bytes, which occur at the end");
  const auto data = make_dataset({"text", folder / "text"}, config, {.microbatch_size = 2}, 1);
  const auto gradients = [&](const Network& network) {
    const auto run = train_reference(network, *data, {}, load_weights(folder / "w", network), 2, 1);
    return std::pair(run.losses.front(), by_name(network, run.gradients));
  };
  const auto [loss, apart] = gradients(build_network(config, 2, 2));
  for (const int stages : {1, 2, 4}) {
    const auto [tied_loss, together] = gradients(build_network(tied(config), 2, stages));
    EXPECT_NEAR(tied_loss, loss, 1e-6 * loss);
    for (const auto& [name, tensor] : together) {
      Floats expected = apart.at(name).values;
      double largest = 0;
      for (std::size_t i = 0; i < expected.size(); ++i) {
        if (name == "transformer.wte.weight") expected[i] += apart.at("lm_head.weight").values[i];
        largest = std::max(largest, std::abs(static_cast<double>(expected[i])));
      }
      for (std::size_t i = 0; i < expected.size(); ++i)
        ASSERT_NEAR(tensor.values[i], expected[i], 1e-5 * largest) << name << " " << i;
    }
  }
}

/// Losses of the first micro-batches under start values that are not trained.
std::vector<double> losses(const Network& network, const Dataset& data, int steps) {
  openblas_set_num_threads(1);
  OptimizerConfig still;
  still.learning_rate = 0;
  return train_reference(network, data, still, start_parameters(network, 1), 1, steps).losses;
}

/// Writes a file as published whose logits are far below 0, as GPT-2's are, and tokens for it.
ModelConfig published_model(const Folder& folder, std::size_t vocabulary) {
  std::uint64_t seed = 1;
  write_published(folder / "w", tiny, [&](const std::string& name, std::size_t count) {
    const bool gain = name.starts_with("ln") || name.find(".ln") != std::string::npos;
    if (name == "ln_f.bias") return Floats(count, -20.0F);
    if (name == "wte.weight") return random_floats(count, ++seed, 0.1, 0.1);
    return random_floats(count, ++seed, 0.2, gain && name.ends_with("weight") ? 1 : 0);
  });
  std::string tokens;
  for (unsigned i = 0; i < 4000; ++i) {
    const auto token = static_cast<std::uint16_t>(i * i % tiny.vocabulary);
    tokens.append(reinterpret_cast<const char*>(&token), sizeof token);
  }
  folder.write("tokens", tokens);
  ModelConfig config = config_of(tiny, vocabulary);
  config.init = folder / "w";
  return config;
}

TEST(PublishedWeights, LossesMatchGpt2InNumpy) {
  if (!have_numpy()) GTEST_SKIP() << "no NumPy in " STARPIPE_PYTHON;
  const Folder folder;
  const ModelConfig config = published_model(folder, tiny.vocabulary);
  const auto data = make_dataset({"tokens", folder / "tokens"}, config, {.microbatch_size = 2}, 1);
  nlohmann::json job = {{"heads", tiny.heads}, {"context", tiny.context}};
  for (int step = 0; step < 3; ++step) {
    Floats input(2 * tiny.context);
    Floats target(2 * tiny.context);
    data->input(step, 0, 0, input);
    data->target(step, 0, target);
    job["batches"].push_back({{"input", std::vector<int>(input.begin(), input.end())},
                              {"target", std::vector<int>(target.begin(), target.end())}});
  }
  const ShellResult result =
      shell(STARPIPE_PYTHON " " STARPIPE_TEST_DIR "/networks/gpt2_numpy.py " + (folder / "w").string() + " " +
            folder.write("job.json", job.dump()).string());
  ASSERT_EQ(result.status, 0) << result.output;
  std::istringstream lines(result.output);
  const auto of_tied = losses(build_network(tied(config), 2, 3), *data, 3);
  std::size_t step = 0;
  for (const double loss : losses(build_network(config, 2, 3), *data, 3)) {
    double expected = 0;
    ASSERT_TRUE(lines >> expected) << result.output;
    EXPECT_NEAR(loss, expected, 1e-4 * expected);
    EXPECT_NEAR(of_tied[step++], expected, 1e-4 * expected);
    EXPECT_GT(expected, 6);  // no agreement by chance at ln(301) = 5.7
  }
}

// Padding costs at most log(padded / vocabulary). With rows of zeros it would cost the size of the logits.
TEST(PublishedWeights, PaddingHardlyRaisesTheLoss) {
  const Folder folder;
  const ModelConfig exact = published_model(folder, tiny.vocabulary);
  const ModelConfig padded = config_of(tiny, 320);
  const auto data = make_dataset({"tokens", folder / "tokens"}, exact, {.microbatch_size = 2}, 1);
  ModelConfig padded_from_file = padded;
  padded_from_file.init = exact.init;
  const auto without = losses(build_network(exact, 2, 1), *data, 5);
  const auto with = losses(build_network(padded_from_file, 2, 1), *data, 5);
  const double max = std::log(320.0 / 301);
  for (std::size_t i = 0; i < without.size(); ++i) {
    EXPECT_GE(with[i], without[i] - 1e-4);
    EXPECT_LE(with[i], without[i] + max + 1e-4);
  }
}

// transformers reads these files: GPT2LMHeadModel's names, and the metadata that says who can read them.
TEST(PublishedWeights, SavedOnesHaveTheNamesOfTransformers) {
  const Folder folder;
  const Network network = build_network(config_of(tiny, tiny.vocabulary), 1, 2);
  save_weights(folder / "w", network, start_parameters(network, 1));
  std::map<std::string, std::string> metadata;
  Shapes shapes;
  for (const auto& [name, tensor] : read_safetensors(folder / "w", &metadata)) shapes[name] = tensor.shape;
  Shapes expected = {{"lm_head.weight", {tiny.vocabulary, tiny.hidden}}};
  for (const auto& [name, shape] : published(tiny)) expected["transformer." + name] = shape;
  EXPECT_EQ(shapes, expected);
  EXPECT_EQ(metadata["format"], "pt");
}

}  // namespace
}  // namespace starpipe::model
