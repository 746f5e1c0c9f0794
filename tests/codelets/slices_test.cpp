// SPDX-License-Identifier: Apache-2.0
// Slices of sequences on each device: layers against a layer of whole sequences, and stages against the CPU.
#include <numeric>
#include <tuple>

#include "codelets/on_device.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/model/cuda_layer.hpp"
#include "starpipe/model/network.hpp"
#include "support/networks.hpp"

namespace starpipe::model {
namespace {

using namespace testing;

struct SlicedCase {
  std::string label;
  LayerSpec spec;                   // of whole sequences
  std::vector<std::size_t> slices;  // rows of each sequence
  std::size_t ids = 0;              // if not 0, the input is token ids below it
};

void PrintTo(const SlicedCase& c, std::ostream* out) { *out << c.label; }

LayerSpec whole_attention(std::size_t sequences, std::size_t context, std::size_t heads, std::size_t kv_heads,
                          std::size_t size) {
  return {"attention",
          "a",
          sequences * context,
          (heads + 2 * kv_heads) * size,
          {{"heads", static_cast<double>(heads)},
           {"kv_heads", static_cast<double>(kv_heads)},
           {"context", static_cast<double>(context)}}};
}

// Slices that begin within a tile or a block of the kernels, and slices of a single token.
std::vector<SlicedCase> sliced_cases() {
  return {
      {"attention", whole_attention(2, 7, 2, 2, 4), {3, 2, 2}},
      {"attention_one_token", whole_attention(3, 4, 2, 1, 1), {1, 1, 2}},
      {"attention_tiles", whole_attention(2, 70, 2, 2, 5), {20, 30, 20}},
      {"attention_whole_tiles", whole_attention(1, 128, 1, 1, 32), {64, 64}},
      {"attention_wide_head", whole_attention(1, 71, 2, 1, 33), {35, 36}},
      {"attention_long", whole_attention(1, 200, 1, 1, 64), {17, 150, 33}},
      {"attention_widest_head", whole_attention(1, 67, 1, 1, 128), {1, 40, 26}},
      {"attention_blocks", whole_attention(1, 270, 1, 1, 8), {101, 169}},
      {"attention_grouped_blocks", whole_attention(2, 150, 3, 1, 8), {60, 50, 40}},
      {"attention_grouped_wide", whole_attention(1, 80, 2, 1, 72), {33, 47}},
      {"attention_widest_blocks", whole_attention(1, 200, 2, 1, 128), {37, 163}},
      {"attention_wide_sequences", whole_attention(2, 150, 2, 1, 64), {61, 89}},
      {"rotary",
       {"rotary", "r", 70, 112, {{"heads", 3}, {"size", 32}, {"context", 35}, {"theta", 10000}}},
       {5, 30}},
      {"rotary_no_packs",
       {"rotary", "r", 22, 13, {{"heads", 2}, {"size", 6}, {"context", 11}, {"theta", 100}}},
       {4, 1, 6}},
      {"embedding",
       {"embedding", "e", 36, 1, {{"vocabulary", 7}, {"outputs", 5}, {"context", 12}}},
       {5, 7},
       7},
      {"embedding_packs",
       {"embedding", "e", 36, 1, {{"vocabulary", 7}, {"outputs", 16}, {"context", 12}}},
       {8, 4},
       7},
      {"positions", {"positions", "p", 70, 33, {{"context", 35}}}, {20, 15}},
      {"positions_packs", {"positions", "p", 22, 16, {{"context", 11}}}, {1, 10}},
  };
}

/// The rows of a slice in each sequence.
struct SliceRows {
  std::size_t context, first, count;

  [[nodiscard]] Floats take(const Floats& whole, std::size_t columns) const {
    Floats part;
    for (std::size_t at = first; at * columns < whole.size(); at += context)
      part.insert(part.end(), whole.begin() + offset(at * columns),
                  whole.begin() + offset((at + count) * columns));
    return part;
  }
  void put(const Floats& part, std::size_t columns, Floats& whole) const {
    for (std::size_t at = first, from = 0; at * columns < whole.size();
         at += context, from += count * columns)
      std::copy_n(part.begin() + offset(from), count * columns, whole.begin() + offset(at * columns));
  }

 private:
  static std::ptrdiff_t offset(std::size_t at) { return static_cast<std::ptrdiff_t>(at); }
};

class SlicePasses : public OnDevice, public ::testing::WithParamInterface<std::tuple<Target, SlicedCase>> {
 protected:
  void SetUp() override {
    start(std::get<0>(GetParam()));
    if (IsSkipped()) return;
    const SlicedCase& c = std::get<1>(GetParam());
    whole_ = make_layer(c.spec);
    const std::size_t context = size_option(c.spec, "context");
    const std::size_t sequences = c.spec.rows / context;
    std::size_t first = 0;
    for (const std::size_t count : c.slices) {
      LayerSpec of_slice = c.spec;
      of_slice.rows = sequences * count;
      of_slice.options["positions"] = static_cast<double>(count);
      if (first > 0) of_slice.options["first_position"] = static_cast<double>(first);
      layers_.push_back(make_layer(of_slice, precision_));
      rows_.push_back({context, first, count});
      first += count;
    }
    ASSERT_EQ(first, context);
    parameters_ = numbers(whole_->parameter_size(), 1, 0.7);
    const std::size_t inputs = whole_->rows() * whole_->input_columns();
    input_ = c.ids > 0 ? random_ids(inputs, c.ids, 2) : numbers(inputs, 2);
    output_gradient_ = numbers(whole_->rows() * whole_->output_columns(), 3);
  }

  struct Results {
    Floats output, input_gradient, parameter_gradient;
    std::vector<Floats> kept;  // of each slice: the stash, and its keys and values
    friend bool operator==(const Results&, const Results&) = default;
  };

  Results of_whole_sequences() const {
    const Layer& layer = *whole_;
    Results results{Floats(output_gradient_.size()), Floats(input_.size()), Floats(parameters_.size()), {}};
    Floats stash(layer.stash_size());
    Floats scratch(layer.scratch_size());
    layer.forward({parameters_, input_, results.output, stash, scratch});
    layer.backward_input({parameters_, stash, output_gradient_, results.input_gradient, scratch});
    layer.backward_weights({stash, output_gradient_, results.parameter_gradient, scratch});
    return results;
  }

  /// The arrays of a slice.
  struct Arrays {
    DeviceFloats input, output, output_gradient, stash, keys_values, earlier_gradient, input_gradient,
        scratch;
  };

  /// Runs the passes of all slices: F in their order, and B and W in the opposite order. All arrays begin so
  /// many words behind a multiple of 64 bytes.
  Results of_slices(const Device& device, std::size_t shift = 0) const {
    const Precision of_input = whole_->reads_ids() ? Precision::fp32 : precision_;
    std::vector<Arrays> arrays;
    for (std::size_t k = 0; k < layers_.size(); ++k) {
      const Layer& layer = *layers_[k];
      const auto array = [&](const Floats& values) { return DeviceFloats(device, values, shift); };
      const auto poisoned = [&](std::size_t words) { return DeviceFloats(device, words, shift); };
      const Floats input = encoded(of_input, rows_[k].take(input_, layer.input_columns()));
      const Floats dy = encoded(precision_, rows_[k].take(output_gradient_, layer.output_columns()));
      arrays.push_back({array(input), poisoned(dy.size()), array(dy), poisoned(layer.stash_words()),
                        poisoned(words(precision_, layer.keys_values_size())),
                        poisoned(layer.earlier_keys_values_size()), poisoned(input.size()),
                        poisoned(layer.scratch_words(device.is_gpu()))});
    }
    DeviceFloats parameters(device, encoded(precision_, parameters_));
    DeviceFloats parameter_gradient(device, Floats(parameters_.size(), 0.0f));
    // The keys and values of the first slices, without what pads them.
    const auto keys_values = [&](std::size_t count) {
      std::vector<ConstMemory> views;
      for (std::size_t k = 0; k < count && layers_[k]->keys_values_size() > 0; ++k) {
        const std::size_t bytes = layers_[k]->keys_values_size() * element_bytes(precision_);
        views.emplace_back(arrays[k].keys_values.span().first(bytes / sizeof(float)));
      }
      return views;
    };
    const Backend& on = device.backend();
    for (std::size_t k = 0; k < layers_.size(); ++k) {
      Arrays& of = arrays[k];
      const std::vector<ConstMemory> before = keys_values(k);
      on.forward(*layers_[k],
                 {parameters, of.input, of.output, of.stash, of.scratch, before, of.keys_values});
    }
    for (std::size_t k = layers_.size(); k-- > 0;) {
      Arrays& of = arrays[k];
      const std::vector<ConstMemory> all = keys_values(k + 1);
      ConstFloatView handed;
      if (k + 1 < layers_.size()) handed = arrays[k + 1].earlier_gradient.span();
      on.backward_input(*layers_[k], {parameters, of.stash, of.output_gradient, of.input_gradient, of.scratch,
                                      all, handed, of.earlier_gradient.span()});
      on.backward_weights(*layers_[k], {of.stash, of.output_gradient, parameter_gradient, of.scratch});
    }
    return read(arrays, parameter_gradient);
  }

  Results read(const std::vector<Arrays>& arrays, const DeviceFloats& parameter_gradient) const {
    Results results{Floats(output_gradient_.size()), Floats(input_.size()), {}, {}};
    const Precision of_input = whole_->reads_ids() ? Precision::fp32 : precision_;
    for (std::size_t k = 0; k < arrays.size(); ++k) {
      const Layer& layer = *layers_[k];
      const Arrays& of = arrays[k];
      of.scratch.read("scratch");
      of.earlier_gradient.read("gradient of the slices before");
      const auto put = [&](Precision precision, const DeviceFloats& from, const char* what,
                           std::size_t columns, Floats& to) {
        rows_[k].put(decoded(precision, from.read(what), layer.rows() * columns), columns, to);
      };
      put(precision_, of.output, "output", layer.output_columns(), results.output);
      put(of_input, of.input_gradient, "input gradient", layer.input_columns(), results.input_gradient);
      const std::size_t statistics = layer.statistics_size();
      results.kept.push_back(
          decoded(precision_, of.stash.read("stash"), layer.stash_size() - statistics, statistics));
      results.kept.push_back(
          decoded(precision_, of.keys_values.read("keys and values"), layer.keys_values_size()));
    }
    results.parameter_gradient = parameter_gradient.read("parameter gradient");
    return results;
  }

  static void expect_near(const Results& results, const Results& expected, double tolerance) {
    expect_close(results.output, expected.output, "output", tolerance);
    expect_close(results.input_gradient, expected.input_gradient, "input gradient", tolerance);
    expect_close(results.parameter_gradient, expected.parameter_gradient, "parameter gradient", tolerance);
  }

  std::unique_ptr<Layer> whole_;
  std::vector<std::unique_ptr<Layer>> layers_;
  std::vector<SliceRows> rows_;
  Floats parameters_, input_, output_gradient_;
};

TEST_P(SlicePasses, GiveTheResultsOfWholeSequences) {
  SCOPED_TRACE("STARPIPE_TEST_SEED=" + std::to_string(seed()));
  for (const auto& layer : layers_) {
    ASSERT_TRUE(layer->cuda() != nullptr || !device_->is_gpu());
  }
  expect_near(of_slices(*device_), of_whole_sequences(), tolerance_);
}

TEST_P(SlicePasses, AreBitwiseTheSameTwice) {
  SCOPED_TRACE("STARPIPE_TEST_SEED=" + std::to_string(seed()));
  EXPECT_TRUE(of_slices(*device_) == of_slices(*device_));
}

TEST_P(SlicePasses, GiveTheSameWhereverArraysStart) {
  SCOPED_TRACE("STARPIPE_TEST_SEED=" + std::to_string(seed()));
  expect_near(of_slices(*device_, 1), of_slices(*device_), tolerance_);
}

// The passes of a slice may run on different kinds of devices.
TEST_P(SlicePasses, KeepWhatTheCpuKeeps) {
  SCOPED_TRACE("STARPIPE_TEST_SEED=" + std::to_string(seed()));
  const Results own = of_slices(*device_);
  const Results expected = of_slices(Cpu());
  for (std::size_t i = 0; i < own.kept.size(); ++i)
    expect_close(own.kept[i], expected.kept[i], "what F keeps", tolerance_);
}

INSTANTIATE_TEST_SUITE_P(
    All, SlicePasses,
    ::testing::Combine(::testing::Values(Target{"cpu", Precision::fp32}, Target{"cpu", Precision::bf16},
                                         Target{"cuda", Precision::fp32}, Target{"cuda", Precision::bf16}),
                       ::testing::ValuesIn(sliced_cases())),
    [](const auto& test) { return label(std::get<0>(test.param)) + "_" + std::get<1>(test.param).label; });

/// Holds what the passes of all slices of a stage write.
struct SlicedStageResults {
  std::vector<Floats> outputs, input_gradients;
  Floats parameter_gradient;
};

/// Runs F of all slices of stage 1, then BW in the opposite order.
SlicedStageResults run_slices(const Device& device, const Network& network, const Floats& parameters,
                              const std::vector<Floats>& inputs, const std::vector<Floats>& gradients) {
  struct Arrays {
    DeviceFloats input, output, gradient, input_gradient, stash, keys_values, earlier, scratch;
  };
  const Backend& on = device.backend();
  DeviceFloats weights(device, parameters);
  DeviceFloats parameter_gradient(device, Floats(network.stages[1].parameter_size(), 0.0f));
  std::vector<Arrays> arrays;
  std::vector<ConstMemory> keys_values;
  const auto count = static_cast<int>(network.slices.size());
  for (int k = 0; k < count; ++k) {
    const Stage& stage = network.stage(1, k);
    const std::size_t at = index(k);
    arrays.push_back({DeviceFloats(device, inputs[at]), DeviceFloats(device, stage.output_size()),
                      DeviceFloats(device, gradients[at]), DeviceFloats(device, inputs[at].size()),
                      DeviceFloats(device, stage.stash_size()),
                      DeviceFloats(device, stage.keys_values_size()),
                      DeviceFloats(device, stage.earlier_gradient_size()),
                      DeviceFloats(device, stage.scratch_size(device.is_gpu()))});
    Arrays& of = arrays.back();
    const ConstMemory input[] = {of.input};
    stage.forward(weights, input, {}, of.output, of.stash, of.scratch, on, {keys_values, of.keys_values});
    keys_values.emplace_back(of.keys_values.span());
  }
  SlicedStageResults results;
  for (int k = count - 1; k >= 0; --k) {
    const Stage& stage = network.stage(1, k);
    Arrays& of = arrays[index(k)];
    const ConstMemory gradient[] = {of.gradient};
    const Memory input_gradient[] = {of.input_gradient};
    ConstFloatView handed;
    if (k + 1 < count) handed = arrays[index(k + 1)].earlier.span();
    stage.backward({.parameters = weights,
                    .stash = of.stash,
                    .output_gradients = gradient,
                    .input_gradients = input_gradient,
                    .parameter_gradient = parameter_gradient,
                    .scratch = of.scratch,
                    .slice = {std::span(keys_values).first(index(k + 1)), handed, of.earlier.span()}},
                   on);
    const auto decode = [&](const DeviceFloats& from, const char* what) {
      return decoded(stage.precision(), from.read(what), stage.rows() * stage.output_columns());
    };
    results.outputs.push_back(decode(of.output, "output"));
    results.input_gradients.push_back(decode(of.input_gradient, "input gradient"));
    of.stash.read("stash");
    of.keys_values.read("keys and values");
    of.earlier.read("gradient of the slices before");
    of.scratch.read("scratch");
  }
  results.parameter_gradient = parameter_gradient.read("parameter gradient");
  return results;
}

class StagesOfSlices : public OnDevice, public ::testing::WithParamInterface<Target> {
 protected:
  void SetUp() override { start(GetParam()); }
};

// Blocks of a GPT and a Llama. In the last network a row of keys and values is no multiple of 16 bytes.
TEST_P(StagesOfSlices, MatchTheCpu) {
  SCOPED_TRACE("STARPIPE_TEST_SEED=" + std::to_string(seed()));
  for (ModelConfig config : {small("gpt", {{"hidden", 24}, {"context", 33}}),
                             small("llama", {{"hidden", 24}, {"intermediate", 20}, {"context", 33}}),
                             small("gpt", {{"hidden", 32}, {"heads", 4}, {"context", 80}}),
                             small("gpt", {{"hidden", 6}, {"heads", 3}, {"context", 9}})}) {
    config.precision = precision_;
    config.slices = 3;
    config.slice_sizes = SliceSizes::work;
    const Network network = build_network(config, 2, 3);
    const Floats parameters =
        rounded_weights(precision_, numbers(network.stages[1].parameter_size(), 1, 0.3));
    std::vector<Floats> inputs, gradients;
    for (const std::vector<Stage>& slice : network.slices) {
      const std::size_t count = slice[1].rows() * slice[1].output_columns();
      inputs.push_back(encoded(precision_, numbers(count, 2 + 2 * inputs.size())));
      gradients.push_back(encoded(precision_, numbers(count, 3 + 2 * inputs.size())));
    }
    const SlicedStageResults expected = run_slices(Cpu(), network, parameters, inputs, gradients);
    const SlicedStageResults results = run_slices(*device_, network, parameters, inputs, gradients);
    const double tolerance = precision_ == Precision::bf16 ? 4 * tolerance_ : tolerance_;
    for (std::size_t k = 0; k < inputs.size(); ++k) {
      expect_close(results.outputs[k], expected.outputs[k], "output", tolerance);
      expect_close(results.input_gradients[k], expected.input_gradients[k], "input gradient", tolerance);
    }
    expect_close(results.parameter_gradient, expected.parameter_gradient, "parameter gradient", tolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(All, StagesOfSlices, targets, [](const auto& test) { return label(test.param); });

}  // namespace
}  // namespace starpipe::model
