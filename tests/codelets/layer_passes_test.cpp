// SPDX-License-Identifier: Apache-2.0
// Every pass of every layer, on each device, against exact results.
#include <cstring>
#include <limits>
#include <set>
#include <tuple>

#include "codelets/on_device.hpp"
#include "starpipe/model/cuda_layer.hpp"

namespace starpipe::model {
namespace {

using namespace testing;

struct Case {
  std::string label;
  LayerSpec spec;
  std::size_t ids = 0;  // if not 0, the input is token ids below it
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.label; }

LayerSpec attention(std::size_t sequences, std::size_t context, std::size_t heads, std::size_t size) {
  return {"attention",
          "a",
          sequences * context,
          3 * heads * size,
          {{"heads", static_cast<double>(heads)}, {"context", static_cast<double>(context)}}};
}

LayerSpec grouped(std::size_t sequences, std::size_t context, std::size_t heads, std::size_t kv_heads,
                  std::size_t size) {
  LayerSpec spec = attention(sequences, context, heads, size);
  spec.columns = (heads + 2 * kv_heads) * size;
  spec.options["kv_heads"] = static_cast<double>(kv_heads);
  return spec;
}

/// `more`: columns behind the heads.
LayerSpec rotary(std::size_t sequences, std::size_t context, std::size_t heads, std::size_t size,
                 std::size_t more, double theta) {
  return {"rotary",
          "r",
          sequences * context,
          heads * size + more,
          {{"heads", static_cast<double>(heads)},
           {"size", static_cast<double>(size)},
           {"context", static_cast<double>(context)},
           {"theta", theta}}};
}

// Shapes whose last warp, block or tile is not full, and some of a single element.
std::vector<Case> cases() {
  const auto embedding = [](double vocabulary, double context, double outputs) {
    return LayerSpec{
        "embedding", "e", 0, 1, {{"vocabulary", vocabulary}, {"context", context}, {"outputs", outputs}}};
  };
  std::vector<Case> all = {
      {"linear", {"linear", "l", 70, 33, {{"outputs", 45}}}},
      {"linear_aligned", {"linear", "l", 64, 32, {{"outputs", 48}}}},
      {"linear_no_bias", {"linear", "l", 9, 6, {{"outputs", 5}, {"bias", 0}}}},
      // A bias of one column, for which cuBLASLt may have no algorithm.
      {"linear_one_output", {"linear", "l", 70, 33, {{"outputs", 1}}}},
      {"linear_conv1d", {"linear", "l", 150, 7, {{"outputs", 33}, {"conv1d", 1}}}},
      {"linear_conv1d_no_bias", {"linear", "l", 9, 6, {{"outputs", 5}, {"conv1d", 1}, {"bias", 0}}}},
      // Without a bias: it could cancel the product, and bounds are relative to the largest result.
      {"linear_one", {"linear", "l", 1, 1, {{"outputs", 1}, {"bias", 0}}}},
      {"layernorm", {"layernorm", "n", 150, 33, {}}},
      {"layernorm_wide", {"layernorm", "n", 5, 300, {}}},
      // Rows of packs that a warp holds in registers, that a block holds, and that neither holds; and rows
      // for a block that are not whole packs.
      {"layernorm_packs", {"layernorm", "n", 70, 40, {}}},
      {"layernorm_packs_of_warp", {"layernorm", "n", 9, 512, {}}},
      {"layernorm_packs_of_block", {"layernorm", "n", 3, 1544, {}}},
      {"layernorm_no_packs_of_block", {"layernorm", "n", 2, 2051, {}}},
      {"layernorm_widest", {"layernorm", "n", 2, 16392, {}}},
      {"layernorm_one", {"layernorm", "n", 1, 1, {}}},
      {"rmsnorm", {"rmsnorm", "n", 150, 33, {{"epsilon", 1e-5}}}},
      {"rmsnorm_large_epsilon", {"rmsnorm", "n", 5, 300, {{"epsilon", 0.5}}}},
      {"rmsnorm_packs", {"rmsnorm", "n", 70, 40, {{"epsilon", 1e-6}}}},
      {"rmsnorm_packs_of_warp", {"rmsnorm", "n", 9, 512, {{"epsilon", 1e-6}}}},
      {"rmsnorm_packs_of_block", {"rmsnorm", "n", 3, 1544, {{"epsilon", 1e-6}}}},
      {"rmsnorm_no_packs_of_block", {"rmsnorm", "n", 2, 2051, {{"epsilon", 1e-6}}}},
      // With the usual epsilon its gradient would be almost 0, and bounds are relative to the largest result.
      {"rmsnorm_one", {"rmsnorm", "n", 1, 1, {{"epsilon", 100}}}},
      {"swiglu", {"swiglu", "s", 30, 66, {}}},
      {"swiglu_packs", {"swiglu", "s", 70, 80, {}}},
      {"swiglu_packs_of_block", {"swiglu", "s", 3, 3088, {}}},
      {"swiglu_one", {"swiglu", "s", 1, 2, {}}},
      {"rotary", rotary(2, 5, 3, 6, 7, 10000)},
      {"rotary_packs", rotary(2, 35, 3, 32, 16, 10000)},
      {"rotary_alone", rotary(1, 300, 1, 2, 0, 100)},
      {"rotary_wide", rotary(1, 3, 20, 64, 640, 500000)},
      {"rotary_one_token", rotary(3, 1, 1, 4, 1, 10000)},
      {"gelu", {"gelu", "g", 30, 33, {}}},
      {"gelu_one", {"gelu", "g", 1, 1, {}}},
      {"embedding", embedding(11, 4, 5), 11},
      {"embedding_many_rows", embedding(3, 130, 3), 3},
      {"embedding_packs", embedding(3, 1100, 16), 3},
      {"embedding_wide", embedding(4, 3, 300), 4},
      {"embedding_more_tokens_than_rows", embedding(30, 5, 304), 7},
      {"embedding_one", embedding(1, 1, 1), 1},
      {"embedding_no_positions", {"embedding", "e", 70, 1, {{"vocabulary", 11}, {"outputs", 8}}}, 11},
      {"embedding_shard", {"embedding", "e", 70, 1, {{"vocabulary", 4}, {"outputs", 8}, {"first", 3}}}, 11},
      {"embedding_shard_of_more_tokens_than_rows",
       {"embedding", "e", 20, 1, {{"vocabulary", 30}, {"outputs", 304}, {"first", 10}}},
       60},
      {"partial_cross_entropy", {"partial_cross_entropy", "h", 30, 33, {{"first", 7}}}},
      {"partial_cross_entropy_packs", {"partial_cross_entropy", "h", 70, 64, {{"first", 0}}}},
      {"partial_cross_entropy_of_block", {"partial_cross_entropy", "h", 3, 2051, {{"first", 5}}}},
      {"partial_cross_entropy_packs_of_block", {"partial_cross_entropy", "h", 2, 4096, {{"first", 0}}}},
      {"partial_cross_entropy_one", {"partial_cross_entropy", "h", 1, 1, {{"first", 0}}}},
      {"positions", {"positions", "p", 70, 33, {{"context", 35}}}},
      {"positions_packs", {"positions", "p", 1100, 16, {{"context", 11}}}},
      {"positions_wide", {"positions", "p", 3, 304, {{"context", 3}}}},
      {"positions_one", {"positions", "p", 1, 1, {{"context", 1}}}},
      {"attention", attention(2, 5, 2, 4)},
      {"attention_one_token", attention(3, 1, 2, 2)},
      {"attention_whole_tiles", attention(1, 64, 1, 32)},
      {"attention_tiles", attention(2, 70, 2, 5)},
      {"attention_wide_head", attention(1, 37, 2, 33)},
      {"attention_long", attention(1, 130, 1, 64)},
      {"attention_widest_head", attention(1, 34, 1, 128)},
      {"attention_grouped", grouped(1, 70, 4, 2, 5)},
      {"attention_one_key_head", grouped(2, 37, 3, 1, 8)},
      {"attention_as_many_key_heads", grouped(1, 34, 2, 2, 4)},
  };
  for (Case& c : all) {
    if (c.spec.rows == 0) c.spec.rows = 4 * size_option(c.spec, "context");
  }
  return all;
}

std::vector<Case> linear_cases() {
  std::vector<Case> all = cases();
  std::erase_if(all, [](const Case& c) { return c.spec.kind != "linear"; });
  return all;
}

// Contexts of more than two blocks of the bf16 kernels (which are larger than in fp32), for each width of
// their tiles; and of several tiles of queries in each head of a group.
std::vector<Case> bf16_cases() {
  return {{"attention_blocks", attention(1, 270, 1, 8)},
          {"attention_wide_blocks", attention(1, 257, 1, 64)},
          {"attention_widest_blocks", attention(1, 141, 2, 72)},
          {"attention_grouped_blocks", grouped(1, 150, 3, 1, 8)},
          {"attention_grouped_wide_blocks", grouped(1, 80, 2, 1, 72)}};
}

class LayerPasses : public OnDevice, public ::testing::WithParamInterface<std::tuple<Target, Case>> {
 protected:
  void SetUp() override {
    start(std::get<0>(GetParam()));
    if (IsSkipped()) return;
    const Case& c = std::get<1>(GetParam());
    layer_ = make_layer(c.spec, precision_);
    if (device_->is_gpu() && layer_->cuda() == nullptr) {
      GTEST_SKIP() << "layer " << c.spec.kind << " has no CUDA implementation (codelets/cuda/" << c.spec.kind
                   << ".cu)";
    }
    parameters_ = numbers(layer_->parameter_size(), 1, 0.7);
    const std::size_t inputs = layer_->rows() * layer_->input_columns();
    input_ = c.ids > 0 ? random_ids(inputs, c.ids, 2) : numbers(inputs, 2);
    weights_ = numbers(layer_->rows() * layer_->output_columns(), 3);
  }

  struct Results {
    Floats output, stash, input_gradient, parameter_gradient;
  };

  enum class Array { parameters, input, weights, output, stash, input_gradient, gradient, scratch };
  using Arrays = std::set<Array>;

  /// Runs F, B and W. `start` is the value of each element of the weights' gradient before W. The `shifted`
  /// arrays begin at addresses that are multiples of an element's size only.
  Results run(float start, const Arrays& shifted = {}) const { return run(start, *device_, shifted); }
  Results run(float start, const Device& device, const Arrays& shifted = {}) const {
    const auto shift = [&](Array array) { return shifted.count(array); };
    const Precision of_input = layer_->reads_ids() ? Precision::fp32 : precision_;
    const Floats encoded_input = encoded(of_input, input_);
    // Parameters may begin at any element, so they are shifted by bytes.
    Floats encoded_parameters = encoded(precision_, parameters_);
    const std::size_t parameter_words = encoded_parameters.size();
    const std::size_t bytes = shift(Array::parameters) * element_bytes(precision_);
    encoded_parameters.push_back(0);
    auto* const memory = reinterpret_cast<std::byte*>(encoded_parameters.data());
    std::memmove(memory + bytes, memory, parameter_words * sizeof(float));
    DeviceFloats all_parameters(device, encoded_parameters);
    const ConstMemory parameters(reinterpret_cast<std::byte*>(all_parameters.span().data()) + bytes,
                                 parameter_words);

    DeviceFloats input(device, encoded_input, shift(Array::input));
    DeviceFloats weights(device, encoded(of_output(), weights_), shift(Array::weights));
    DeviceFloats output(device, words(of_output(), weights_.size()), shift(Array::output));
    DeviceFloats stash(device, stash_before(), shift(Array::stash));
    DeviceFloats input_gradient(device, encoded_input.size(), shift(Array::input_gradient));
    DeviceFloats parameter_gradient(device, Floats(parameters_.size(), start), shift(Array::gradient));
    DeviceFloats scratch(device, layer_->scratch_words(device.is_gpu()), shift(Array::scratch));
    const Backend& on = device.backend();
    on.forward(*layer_, {parameters, input, output, stash, scratch});
    on.backward_input(*layer_, {parameters, stash, weights, input_gradient, scratch});
    on.backward_weights(*layer_, {stash, weights, parameter_gradient, scratch});
    scratch.read("scratch");
    EXPECT_EQ(input.read("input"), encoded_input);
    EXPECT_EQ(all_parameters.read("parameters"), encoded_parameters);
    const std::size_t statistics = layer_->statistics_size();
    return {decoded(of_output(), output.read("output"), weights_.size()),
            decoded(precision_, stash.read("stash"), layer_->stash_size() - statistics, statistics),
            decoded(of_input, input_gradient.read("input gradient"), input_.size()),
            parameter_gradient.read("parameter gradient")};
  }

  const LayerSpec& spec() const { return std::get<1>(GetParam()).spec; }
  Precision of_output() const { return layer_->writes_floats() ? Precision::fp32 : precision_; }
  /// The stash before F: the target, if the layer reads it.
  Floats stash_before() const {
    Floats stash(layer_->stash_words(), poison_value);
    for (std::size_t r = 0; r < layer_->target_size(); ++r)
      stash[layer_->target_offset() + r] = target_of_row(spec(), r);
    return stash;
  }

  std::unique_ptr<Layer> layer_;
  Floats parameters_, input_, weights_;
};

TEST_P(LayerPasses, AreExact) {
  SCOPED_TRACE("STARPIPE_TEST_SEED=" + std::to_string(seed()));
  const Results results = run(0);
  const Doubles parameters = doubles(parameters_);
  const Doubles input = doubles(input_);
  expect_close(results.output, exact(spec(), parameters, input), "output", tolerance_);

  const auto weighted = [&](const Doubles& y) {
    double sum = 0;
    for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * static_cast<double>(weights_[i]);
    return sum;
  };
  if (std::get<1>(GetParam()).ids > 0) {
    EXPECT_EQ(results.input_gradient, Floats(input_.size(), 0.0f));
  } else {
    expect_slopes([&](const Doubles& x) { return weighted(exact(spec(), parameters, x)); }, input,
                  results.input_gradient, 0, input.size(), "input gradient", tolerance_, weights_);
  }
  std::size_t first = 0;
  for (const Parameter& parameter : layer_->parameters()) {
    expect_slopes([&](const Doubles& p) { return weighted(exact(spec(), p, input)); }, parameters,
                  results.parameter_gradient, first, parameter.size(), parameter.name, tolerance_, weights_);
    first += parameter.size();
  }
}

TEST_P(LayerPasses, AddToTheWeightsGradient) {
  if (parameters_.empty()) return;
  SCOPED_TRACE("STARPIPE_TEST_SEED=" + std::to_string(seed()));
  constexpr float before = 3;
  Doubles sum = doubles(run(0).parameter_gradient);
  for (double& value : sum) value += before;
  expect_close(run(before).parameter_gradient, sum, "parameter gradient", 1e-5, before);
}

TEST_P(LayerPasses, AreBitwiseTheSameTwice) {
  SCOPED_TRACE("STARPIPE_TEST_SEED=" + std::to_string(seed()));
  const Results a = run(0);
  const Results b = run(0);
  EXPECT_EQ(a.output, b.output);
  EXPECT_EQ(a.stash, b.stash);
  EXPECT_EQ(a.input_gradient, b.input_gradient);
  EXPECT_EQ(a.parameter_gradient, b.parameter_gradient);
}

// Stages place the arrays of layers one behind the other, so arrays may begin anywhere. Shifts arrays in
// groups such that every array of every pass is shifted once.
TEST_P(LayerPasses, AreExactWhereverArraysStart) {
  SCOPED_TRACE("STARPIPE_TEST_SEED=" + std::to_string(seed()));
  const Results expected = run(0);
  for (const Arrays& shifted :
       {Arrays{Array::input, Array::input_gradient, Array::gradient}, Arrays{Array::output, Array::weights},
        Arrays{Array::parameters, Array::scratch}, Arrays{Array::stash}}) {
    const Results results = run(0, shifted);
    SCOPED_TRACE("the first array that is shifted: " + std::to_string(static_cast<int>(*shifted.begin())));
    expect_close(results.output, expected.output, "output", tolerance_);
    expect_close(results.stash, expected.stash, "stash", tolerance_);
    expect_close(results.input_gradient, expected.input_gradient, "input gradient", tolerance_);
    expect_close(results.parameter_gradient, expected.parameter_gradient, "parameter gradient", tolerance_);
  }
}

// F and B of a micro-batch may run on different kinds of devices, so all devices have the same stash.
TEST_P(LayerPasses, KeepTheStashOfTheCpu) {
  SCOPED_TRACE("STARPIPE_TEST_SEED=" + std::to_string(seed()));
  expect_close(run(0).stash, run(0, Cpu()).stash, "stash", tolerance_);
}

// A layer that computes on bf16 itself has the results of the way by copies: its fp32 passes on widened
// arrays, whose results are rounded once. The bits are the same, too, but for layers with products: products
// in bf16 add in another order, and attention rounds the probabilities that it multiplies.
TEST_P(LayerPasses, OnBf16HaveTheResultsOfFloats) {
  if (device_->is_gpu() || !layer_->bf16_scratch_size()) return;
  SCOPED_TRACE("STARPIPE_TEST_SEED=" + std::to_string(seed()));
  const Results results = run(0.5f);
  const auto rounded = [](const Floats& values) {
    return decoded(Precision::bf16, encoded(Precision::bf16, values), values.size());
  };
  const bool has_products = spec().kind == "linear" || spec().kind == "attention";
  const auto expect_same = [&](const Floats& values, const Floats& wanted, const char* what) {
    if (has_products) {
      expect_close(values, wanted, what, tolerance_);
    } else {
      EXPECT_EQ(values, wanted) << what;
    }
  };
  const auto plain = make_layer(spec());
  Floats scratch(plain->scratch_size());
  Floats output(weights_.size());
  Floats stash(plain->stash_size());
  plain->forward({parameters_, input_, output, stash, scratch});
  expect_same(results.output, rounded(output), "output");
  const auto statistics = static_cast<std::ptrdiff_t>(plain->statistics_size());
  Floats kept = rounded(stash);
  std::copy(stash.end() - statistics, stash.end(), kept.end() - statistics);
  if (spec().kind == "linear") {
    EXPECT_EQ(results.stash, kept);
  } else {
    expect_same(results.stash, kept, "stash");
  }
  Floats input_gradient(input_.size());
  plain->backward_input({parameters_, kept, weights_, input_gradient, scratch});
  expect_same(results.input_gradient, rounded(input_gradient), "input gradient");
  Floats gradient(parameters_.size(), 0.5f);
  plain->backward_weights({kept, weights_, gradient, scratch});
  expect_same(results.parameter_gradient, gradient, "parameter gradient");
}

// Stages place the input of such a layer at the beginning of its stash.
TEST_P(LayerPasses, FindTheirInputInTheStash) {
  if (!layer_->keeps_input()) return;
  SCOPED_TRACE("STARPIPE_TEST_SEED=" + std::to_string(seed()));
  const Results apart = run(0);
  const Floats input = encoded(precision_, input_);
  Floats start = stash_before();
  std::ranges::copy(input, start.begin());
  DeviceFloats stash = put(start);
  DeviceFloats parameters = put_array(parameters_);
  DeviceFloats output = poisoned(words(of_output(), weights_.size()));
  DeviceFloats scratch = poisoned(layer_->scratch_words(device_->is_gpu()));
  on().forward(*layer_, {parameters, stash.span().first(input.size()), output, stash, scratch});
  const std::size_t statistics = layer_->statistics_size();
  EXPECT_EQ(decoded(of_output(), output.read("output"), weights_.size()), apart.output);
  EXPECT_EQ(decoded(precision_, stash.read("stash"), layer_->stash_size() - statistics, statistics),
            apart.stash);
}

const auto name_of_passes = [](const auto& test) {
  return label(std::get<0>(test.param)) + "_" + std::get<1>(test.param).label;
};
INSTANTIATE_TEST_SUITE_P(
    All, LayerPasses,
    ::testing::Combine(::testing::Values(Target{"cpu", Precision::fp32}, Target{"cpu", Precision::bf16},
                                         Target{"cuda", Precision::fp32}, Target{"cuda", Precision::bf16}),
                       ::testing::ValuesIn(cases())),
    name_of_passes);
// Only linear layers differ between TF32 and fp32.
INSTANTIATE_TEST_SUITE_P(Tf32, LayerPasses,
                         ::testing::Combine(::testing::Values(Target{"cuda", Precision::tf32}),
                                            ::testing::ValuesIn(linear_cases())),
                         name_of_passes);
INSTANTIATE_TEST_SUITE_P(Bf16, LayerPasses,
                         ::testing::Combine(::testing::Values(Target{"cuda", Precision::bf16}),
                                            ::testing::ValuesIn(bf16_cases())),
                         name_of_passes);

// Over 1024 keys, attention's blocks have some keys more than they need.
INSTANTIATE_TEST_SUITE_P(
    LongContexts, LayerPasses,
    ::testing::Combine(::testing::Values(Target{"cpu", Precision::bf16}),
                       ::testing::Values(Case{"attention_long", attention(1, 1100, 1, 2)},
                                         Case{"attention_long_groups", grouped(1, 1030, 2, 1, 2)})),
    name_of_passes);

#ifndef STARPIPE_TEST_CUDA
// The test codelets_devices_avx2 limits oneDNN's instructions.
TEST(Bf16, LinearLayersMultiplyWhereTheProcessorCan) {
  const char* const limit = std::getenv("ONEDNN_MAX_CPU_ISA");
  const LayerSpec spec = {"linear", "l", 64, 64, {{"outputs", 64}}};
  const auto layer = make_layer(spec, Precision::bf16);
  if (limit != nullptr && std::string(limit) == "AVX2") {
    EXPECT_FALSE(layer->bf16_scratch_size());
  }
  EXPECT_FALSE(make_layer(spec)->bf16_scratch_size()) << "a layer in fp32";
}
#endif

// The tests above would also pass if TF32 computed in fp32, so this one expects different results.
TEST(Tf32, ChangesProducts) {
#ifndef STARPIPE_TEST_CUDA
  GTEST_SKIP() << "built without CUDA";
#else
  if (!Gpu::missing().empty()) GTEST_SKIP() << "no CUDA device: " << Gpu::missing();
  const Gpu gpu;
  const LayerSpec spec = {"linear", "l", 64, 64, {{"outputs", 64}}};
  const auto output_in = [&](Precision precision) {
    const auto layer = make_layer(spec, precision);
    DeviceFloats parameters(gpu, random(64 * 64 + 64, 1));
    DeviceFloats input(gpu, random(64 * 64, 2));
    DeviceFloats output(gpu, std::size_t{64 * 64});
    DeviceFloats stash(gpu, layer->stash_size());
    DeviceFloats scratch(gpu, layer->cuda()->scratch_size());
    gpu.backend().forward(*layer, {parameters, input, output, stash, scratch});
    return output.read("output");
  };
  EXPECT_NE(output_in(Precision::tf32), output_in(Precision::fp32));
#endif
}

TEST(Cases, HaveEveryLayer) {
  std::set<std::string> tested;
  for (const Case& c : cases()) tested.insert(c.spec.kind);
  for (const std::string& kind : layer_kinds()) {
    EXPECT_TRUE(tested.contains(kind))
        << "layer " << kind
        << ": add shapes to cases() in tests/codelets/layer_passes_test.cpp, and its exact result to exact() "
           "in tests/codelets/exact.hpp; no CUDA implementation is needed";
  }
}

}  // namespace
}  // namespace starpipe::model
