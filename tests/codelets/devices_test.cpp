// SPDX-License-Identifier: Apache-2.0
// Every pass of every layer, the losses, the optimizers and what stages do in between, on each device against
// what is exact. Inputs are new in each run; a failure prints the seed, STARPIPE_TEST_SEED repeats it.
#include "codelets/devices.hpp"

#include <cblas.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <iostream>
#include <limits>
#include <ostream>
#include <random>
#include <set>
#include <tuple>

#include "codelets/exact.hpp"
#include "starpipe/model/cuda_twin.hpp"
#include "starpipe/model/network.hpp"

namespace starpipe::model {
namespace {

using namespace testing;

std::uint64_t seed() {
  static const std::uint64_t value = [] {
    const char* given = std::getenv("STARPIPE_TEST_SEED");
    const std::uint64_t chosen =
        given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
    std::cout << "STARPIPE_TEST_SEED=" << chosen << '\n';
    return chosen;
  }();
  return value;
}

Floats random(std::size_t count, std::uint64_t stream, double deviation = 1) {
  return random_floats(count, seed() * 100 + stream, deviation);
}

Floats random_ids(std::size_t count, std::size_t below, std::uint64_t stream) {
  std::mt19937_64 bits(seed() * 100 + stream);
  std::uniform_int_distribution<std::size_t> id(0, below - 1);
  Floats ids(count);
  for (float& value : ids) value = static_cast<float>(id(bits));
  return ids;
}

Doubles doubles(std::span<const float> values) { return {values.begin(), values.end()}; }

/// At most 100 of `count` indices.
std::vector<std::size_t> sample(std::size_t count) {
  std::vector<std::size_t> all(count);
  for (std::size_t i = 0; i < count; ++i) all[i] = i;
  std::mt19937_64 bits(seed());
  std::shuffle(all.begin(), all.end(), bits);
  all.resize(std::min<std::size_t>(count, 100));
  return all;
}

/// Compares `gradient` with the differences of f at a sample of the coordinates of [first, first + count).
void expect_slopes(const std::function<double(const Doubles&)>& f, const Doubles& x, const Floats& gradient,
                   std::size_t first, std::size_t count, const std::string& what, double tolerance) {
  double largest = 0;
  for (std::size_t i = first; i < first + count; ++i) {
    ASSERT_TRUE(std::isfinite(gradient[i])) << what << "[" << i << "] was not written";
    largest = std::max(largest, std::abs(static_cast<double>(gradient[i])));
  }
  for (const std::size_t offset : sample(count)) {
    const std::size_t i = first + offset;
    const double expected = slope(f, x, i);
    ASSERT_NEAR(gradient[i], expected, tolerance * largest + 1e-9) << what << "[" << i << "]";
  }
}

/// A kind of device, and a precision that it has.
struct Target {
  std::string device;
  Precision precision = Precision::fp32;
};

std::string label(const Target& target) {
  return target.device + "_" + std::string(to_string(target.precision));
}
void PrintTo(const Target& target, std::ostream* out) { *out << label(target); }

const auto targets = ::testing::Values(Target{"cpu", Precision::fp32}, Target{"cpu", Precision::bf16},
                                       Target{"cuda", Precision::fp32}, Target{"cuda", Precision::tf32},
                                       Target{"cuda", Precision::bf16});

/// How far off a result may be, relative to the largest one.
double tolerance_of(Precision precision) {
  switch (precision) {
    case Precision::fp32:
      return 1e-5;
    case Precision::tf32:
      // Both factors of each product lose up to 2^-10 of themselves; twice that, since the largest sum may
      // have cancelled more than what it lost.
      return std::ldexp(1, -8);
    case Precision::bf16:
      // Inputs are exact. What F keeps loses up to 2^-9 of itself, and so does a result; twice that, as
      // above.
      return std::ldexp(1, -7);
  }
  return 0;
}

class OnDevice : public ::testing::Test {
 protected:
  void start(const Target& target) {
    openblas_set_num_threads(1);
    precision_ = target.precision;
    tolerance_ = tolerance_of(precision_);
    std::string reason;
    device_ = make_device(target.device, reason);
    if (device_ == nullptr) GTEST_SKIP() << "no CUDA device: " << reason;
  }
  const Backend& on() const { return device_->backend(); }
  /// Random numbers that the precision has.
  Floats numbers(std::size_t count, std::uint64_t stream, double deviation = 1) const {
    return decoded(precision_, encoded(precision_, random(count, stream, deviation)), count);
  }
  DeviceFloats put(const Floats& values, std::size_t shift = 0) const { return {*device_, values, shift}; }
  DeviceFloats put_array(const Floats& values, std::size_t shift = 0) const {
    return put(encoded(precision_, values), shift);
  }
  DeviceFloats poisoned(std::size_t size, std::size_t shift = 0) const { return {*device_, size, shift}; }

  Precision precision_ = Precision::fp32;
  double tolerance_ = 0;
  std::unique_ptr<Device> device_;
};

struct Case {
  std::string label;
  LayerSpec spec;
  std::size_t ids = 0;  // the input is token ids below this
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.label; }

LayerSpec attention(std::size_t sequences, std::size_t context, std::size_t heads, std::size_t size) {
  return {"attention",
          "a",
          sequences * context,
          3 * heads * size,
          {{"heads", static_cast<double>(heads)}, {"context", static_cast<double>(context)}}};
}

// Shapes that do not fill the last warp, block or tile, and some that are one element.
std::vector<Case> cases() {
  const auto embedding = [](double vocabulary, double context, double outputs) {
    return LayerSpec{
        "embedding", "e", 0, 1, {{"vocabulary", vocabulary}, {"context", context}, {"outputs", outputs}}};
  };
  std::vector<Case> all = {
      {"linear", {"linear", "l", 70, 33, {{"outputs", 45}}}},
      {"linear_aligned", {"linear", "l", 64, 32, {{"outputs", 48}}}},
      {"linear_no_bias", {"linear", "l", 9, 6, {{"outputs", 5}, {"bias", 0}}}},
      // A bias of one column, which cuBLAS may not add.
      {"linear_one_output", {"linear", "l", 70, 33, {{"outputs", 1}}}},
      {"linear_conv1d", {"linear", "l", 150, 7, {{"outputs", 33}, {"conv1d", 1}}}},
      {"linear_conv1d_no_bias", {"linear", "l", 9, 6, {{"outputs", 5}, {"conv1d", 1}, {"bias", 0}}}},
      // Without a bias, which the product could cancel: bounds are relative to the largest result.
      {"linear_one", {"linear", "l", 1, 1, {{"outputs", 1}, {"bias", 0}}}},
      {"layernorm", {"layernorm", "n", 150, 33, {}}},
      {"layernorm_wide", {"layernorm", "n", 5, 300, {}}},
      // What a warp, a block and neither holds of a row, in packs; and rows of blocks that are not whole
      // packs.
      {"layernorm_packs", {"layernorm", "n", 70, 40, {}}},
      {"layernorm_packs_of_warp", {"layernorm", "n", 9, 512, {}}},
      {"layernorm_packs_of_block", {"layernorm", "n", 3, 1544, {}}},
      {"layernorm_no_packs_of_block", {"layernorm", "n", 2, 2051, {}}},
      {"layernorm_widest", {"layernorm", "n", 2, 16392, {}}},
      {"layernorm_one", {"layernorm", "n", 1, 1, {}}},
      {"gelu", {"gelu", "g", 30, 33, {}}},
      {"gelu_one", {"gelu", "g", 1, 1, {}}},
      {"embedding", embedding(11, 4, 5), 11},
      {"embedding_many_rows", embedding(3, 130, 3), 3},
      {"embedding_packs", embedding(3, 1100, 16), 3},
      {"embedding_wide", embedding(4, 3, 300), 4},
      {"embedding_more_tokens_than_rows", embedding(30, 5, 304), 7},
      {"embedding_one", embedding(1, 1, 1), 1},
      {"attention", attention(2, 5, 2, 4)},
      {"attention_one_token", attention(3, 1, 2, 2)},
      {"attention_whole_tiles", attention(1, 64, 1, 32)},
      {"attention_tiles", attention(2, 70, 2, 5)},
      {"attention_wide_head", attention(1, 37, 2, 33)},
      {"attention_long", attention(1, 130, 1, 64)},
      {"attention_widest_head", attention(1, 34, 1, 128)},
  };
  for (Case& c : all) {
    if (c.ids > 0) c.spec.rows = 4 * size_option(c.spec, "context");
  }
  return all;
}

// More than two blocks of the GPU's kernels, which are larger in bf16, for each width of their tiles.
std::vector<Case> bf16_cases() {
  return {{"attention_blocks", attention(1, 270, 1, 8)},
          {"attention_wide_blocks", attention(1, 257, 1, 64)},
          {"attention_widest_blocks", attention(1, 141, 1, 66)}};
}

class LayerPasses : public OnDevice, public ::testing::WithParamInterface<std::tuple<Target, Case>> {
 protected:
  void SetUp() override {
    start(std::get<0>(GetParam()));
    if (IsSkipped()) return;
    const Case& c = std::get<1>(GetParam());
    layer_ = make_layer(c.spec, precision_);
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

  /// F, B and W. `start` is what is in the weights' gradient before; arrays that are shifted start at
  /// addresses that are only multiples of an element's size.
  Results run(float start, const Arrays& shifted = {}) const { return run(start, *device_, shifted); }
  Results run(float start, const Device& device, const Arrays& shifted = {}) const {
    const auto shift = [&](Array array) { return shifted.count(array); };
    const Precision of_input = layer_->reads_ids() ? Precision::fp32 : precision_;
    const Floats encoded_input = encoded(of_input, input_);
    // Weights start at any element.
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
    DeviceFloats weights(device, encoded(precision_, weights_), shift(Array::weights));
    DeviceFloats output(device, words(precision_, weights_.size()), shift(Array::output));
    DeviceFloats stash(device, layer_->stash_words(), shift(Array::stash));
    DeviceFloats input_gradient(device, encoded_input.size(), shift(Array::input_gradient));
    DeviceFloats parameter_gradient(device, Floats(parameters_.size(), start), shift(Array::gradient));
    DeviceFloats scratch(device, layer_->scratch_words(device.is_gpu()), shift(Array::scratch));
    const Backend& on = device.backend();
    on.forward(*layer_, parameters, input, output, stash, scratch);
    on.backward_input(*layer_, parameters, stash, weights, input_gradient, scratch);
    on.backward_weights(*layer_, stash, weights, parameter_gradient, scratch);
    scratch.read("scratch");
    EXPECT_EQ(input.read("input"), encoded_input);
    EXPECT_EQ(all_parameters.read("parameters"), encoded_parameters);
    const std::size_t statistics = layer_->statistics_size();
    return {decoded(precision_, output.read("output"), weights_.size()),
            decoded(precision_, stash.read("stash"), layer_->stash_size() - statistics, statistics),
            decoded(of_input, input_gradient.read("input gradient"), input_.size()),
            parameter_gradient.read("parameter gradient")};
  }

  const LayerSpec& spec() const { return std::get<1>(GetParam()).spec; }

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
                  results.input_gradient, 0, input.size(), "input gradient", tolerance_);
  }
  std::size_t first = 0;
  for (const Parameter& parameter : layer_->parameters()) {
    expect_slopes([&](const Doubles& p) { return weighted(exact(spec(), p, input)); }, parameters,
                  results.parameter_gradient, first, parameter.size(), parameter.name, tolerance_);
    first += parameter.size();
  }
}

TEST_P(LayerPasses, AddToTheWeightsGradient) {
  if (parameters_.empty()) return;
  SCOPED_TRACE("STARPIPE_TEST_SEED=" + std::to_string(seed()));
  Doubles sum = doubles(run(0).parameter_gradient);
  for (double& value : sum) value += 3;
  expect_close(run(3).parameter_gradient, sum, "parameter gradient", 1e-5);
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

// Stages have the arrays of layers one after the other, however many words they have. In turn, each pass has
// one that is shifted.
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

// So that a micro-batch's F and B may be on different kinds of devices.
TEST_P(LayerPasses, KeepTheStashOfTheCpu) {
  SCOPED_TRACE("STARPIPE_TEST_SEED=" + std::to_string(seed()));
  expect_close(run(0).stash, run(0, Cpu()).stash, "stash", tolerance_);
}

// Stages have it written there.
TEST_P(LayerPasses, FindTheirInputInTheStash) {
  if (!layer_->keeps_input()) return;
  SCOPED_TRACE("STARPIPE_TEST_SEED=" + std::to_string(seed()));
  const Results apart = run(0);
  const Floats input = encoded(precision_, input_);
  Floats start(layer_->stash_words(), kNaN);
  std::ranges::copy(input, start.begin());
  DeviceFloats stash = put(start);
  DeviceFloats parameters = put_array(parameters_);
  DeviceFloats output = poisoned(words(precision_, weights_.size()));
  DeviceFloats scratch = poisoned(layer_->scratch_words(device_->is_gpu()));
  on().forward(*layer_, parameters, stash.span().first(input.size()), output, stash, scratch);
  const std::size_t statistics = layer_->statistics_size();
  EXPECT_EQ(decoded(precision_, output.read("output"), weights_.size()), apart.output);
  EXPECT_EQ(decoded(precision_, stash.read("stash"), layer_->stash_size() - statistics, statistics),
            apart.stash);
}

const auto name_of_passes = [](const auto& test) {
  return label(std::get<0>(test.param)) + "_" + std::get<1>(test.param).label;
};
INSTANTIATE_TEST_SUITE_P(All, LayerPasses, ::testing::Combine(targets, ::testing::ValuesIn(cases())),
                         name_of_passes);
INSTANTIATE_TEST_SUITE_P(Bf16, LayerPasses,
                         ::testing::Combine(::testing::Values(Target{"cuda", Precision::bf16}),
                                            ::testing::ValuesIn(bf16_cases())),
                         name_of_passes);

// Else the bounds of TF32 would be those of fp32, and nobody would notice that it is not there.
TEST(Tf32, MultipliesOtherwise) {
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
    gpu.backend().forward(*layer, parameters, input, output, stash, scratch);
    return output.read("output");
  };
  EXPECT_NE(output_in(Precision::tf32), output_in(Precision::fp32));
#endif
}

TEST(Cases, HaveEveryLayer) {
  std::set<std::string> tested;
  for (const Case& c : cases()) tested.insert(c.spec.kind);
  const std::vector<std::string> kinds = layer_kinds();
  EXPECT_EQ(tested, std::set<std::string>(kinds.begin(), kinds.end()));
}

using LossCase = std::tuple<Target, std::string, std::size_t, std::size_t>;  // ..., kind, rows, columns

class LossPasses : public OnDevice, public ::testing::WithParamInterface<LossCase> {};

TEST_P(LossPasses, AreExact) {
  const auto& [target, kind, rows, columns] = GetParam();
  start(target);
  if (IsSkipped()) return;
  SCOPED_TRACE("STARPIPE_TEST_SEED=" + std::to_string(seed()));
  const auto loss = make_loss(kind, rows, columns, precision_);
  const Floats x = numbers(rows * columns, 1, 2);
  const std::size_t target_size = rows * loss->target_columns();
  const Floats wanted = kind == "mse" ? random(target_size, 2) : random_ids(target_size, columns, 2);
  DeviceFloats input = put_array(x);
  DeviceFloats on_device = put(wanted);
  DeviceFloats stash = poisoned(loss->stash_words());
  DeviceFloats mean = poisoned(1);
  DeviceFloats scratch = poisoned(loss->scratch_words(device_->is_gpu()));
  DeviceFloats gradient = poisoned(words(precision_, x.size()));
  on().forward(*loss, input, on_device, stash, mean, scratch);
  on().backward_input(*loss, stash, 0.25f, gradient, scratch);
  scratch.read("scratch");

  const auto f = [&](const Doubles& at) { return exact_loss(kind, rows, columns, at, doubles(wanted)); };
  const double expected = f(doubles(x));
  EXPECT_NEAR(mean.read("loss")[0], expected, 1e-5 * expected + 1e-9);
  const auto quarter = [&](const Doubles& at) { return 0.25 * f(at); };
  expect_slopes(quarter, doubles(x), decoded(precision_, gradient.read("gradient"), x.size()), 0, x.size(),
                "gradient", tolerance_);
  Floats kept(loss->stash_size());
  loss->forward(x, wanted, kept);
  const auto numbers_of = [&](const DeviceFloats& of) {
    return decoded(precision_, of.read("stash"), loss->stash_size());
  };
  expect_close(numbers_of(stash), kept, "stash", tolerance_);

  // Without the value, as where F is computed again.
  DeviceFloats again = poisoned(loss->stash_words());
  on().forward(*loss, input, on_device, again, {}, scratch);
  EXPECT_EQ(numbers_of(again), numbers_of(stash));

  // Wherever arrays start.
  for (int shifted = 0; shifted < 4; ++shifted) {
    const auto shift = [shifted](int array) { return array == shifted ? std::size_t{1} : std::size_t{0}; };
    DeviceFloats input_there = put_array(x, shift(0));
    DeviceFloats target_there = put(wanted, shift(1));
    DeviceFloats stash_there = poisoned(loss->stash_words(), shift(2));
    DeviceFloats gradient_there = poisoned(words(precision_, x.size()), shift(3));
    on().forward(*loss, input_there, target_there, stash_there, mean, scratch);
    on().backward_input(*loss, stash_there, 0.25f, gradient_there, scratch);
    EXPECT_NEAR(mean.read("loss")[0], expected, 1e-5 * expected + 1e-9);
    expect_close(numbers_of(stash_there), numbers_of(stash), "stash", tolerance_);
    expect_close(decoded(precision_, gradient_there.read("gradient"), x.size()),
                 decoded(precision_, gradient.read("gradient"), x.size()), "gradient", tolerance_);
  }
}

std::string loss_label(const ::testing::TestParamInfo<LossCase>& test) {
  const auto& [target, kind, rows, columns] = test.param;
  return label(target) + "_" + kind + "_" + std::to_string(rows) + "_" + std::to_string(columns);
}

INSTANTIATE_TEST_SUITE_P(All, LossPasses,
                         ::testing::Combine(targets, ::testing::Values("cross_entropy", "mse"),
                                            ::testing::Values(1, 3, 300), ::testing::Values(1, 50)),
                         loss_label);
// Rows of whole packs, and those too wide for a warp, which begin packs or do not.
INSTANTIATE_TEST_SUITE_P(Wide, LossPasses,
                         ::testing::Combine(targets, ::testing::Values("cross_entropy", "mse"),
                                            ::testing::Values(3), ::testing::Values(64, 2051, 4096)),
                         loss_label);

class Devices : public OnDevice, public ::testing::WithParamInterface<Target> {
 protected:
  void SetUp() override { start(GetParam()); }
  void expect_stages_of_the_cpu(ModelConfig config, int microbatch_size, int stages) const;
};

TEST_P(Devices, Optimizers) {
  SCOPED_TRACE("STARPIPE_TEST_SEED=" + std::to_string(seed()));
  OptimizerConfig adamw;
  OptimizerConfig sgd;
  sgd.kind = "sgd";
  OptimizerConfig momentum = sgd;
  momentum.momentum = 0.9;
  using Run = std::tuple<OptimizerConfig, std::size_t>;  // ..., parameters
  for (const auto& [config, n] :
       {Run{adamw, 300}, Run{adamw, 301}, Run{sgd, 1}, Run{sgd, 303}, Run{momentum, 303}}) {
    Floats w = random(n, 1);
    Floats state(optimizer_state_size(config, n), 0.0f);
    DeviceFloats parameters = put(w);
    DeviceFloats kept = put(state);
    for (int step = 1; step <= 3; ++step) {
      const Floats g = random(n, 1 + static_cast<std::uint64_t>(step));
      DeviceFloats gradient = put(g);
      on().update(config, step, gradient, parameters, kept);
      optimizer_step(config, step, g, w, state);
    }
    expect_close(parameters.read("parameters"), w, config.kind, 1e-5);
    expect_close(kept.read("state"), state, config.kind + " state", 1e-5);
  }
}

TEST_P(Devices, Memory) {
  const std::size_t rows = 7;
  const std::size_t stride = 41;
  const std::size_t count = rows * stride;
  const Floats a = numbers(count, 1);
  const Floats b = numbers(count, 2);
  DeviceFloats x = put_array(a);
  DeviceFloats y = put_array(b);
  DeviceFloats sum = poisoned(words(precision_, count));
  const auto read = [&](const DeviceFloats& from, const char* what) {
    return decoded(precision_, from.read(what), count);
  };
  on().add(precision_, x, y, sum);
  Floats expected;
  for (std::size_t i = 0; i < count; ++i) expected.push_back(a[i] + b[i]);
  expected = decoded(precision_, encoded(precision_, expected), count);
  EXPECT_EQ(read(sum, "sum"), expected);
  on().add(precision_, x, y, x);
  EXPECT_EQ(read(x, "sum in place"), expected);
  for (const auto& [of_a, of_b, of_sum] : {std::tuple(1, 0, 0), std::tuple(0, 1, 0), std::tuple(0, 0, 1)}) {
    DeviceFloats a_there = put_array(a, of_a);
    DeviceFloats b_there = put_array(b, of_b);
    DeviceFloats sum_there = poisoned(words(precision_, count), of_sum);
    on().add(precision_, a_there, b_there, sum_there);
    EXPECT_EQ(read(sum_there, "sum wherever arrays start"), expected);
  }
  on().copy(y, sum);
  EXPECT_EQ(read(sum, "copy"), b);
  on().zero(sum);
  EXPECT_EQ(read(sum, "zero"), Floats(count, 0.0f));
  const std::size_t bytes = element_bytes(precision_);
  on().copy_columns(reinterpret_cast<const std::byte*>(y.span().data()) + 3 * bytes, stride * bytes,
                    reinterpret_cast<std::byte*>(sum.span().data()) + 5 * bytes, stride * bytes, 10 * bytes,
                    rows);
  Floats columns(count, 0.0f);
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t c = 0; c < 10; ++c) columns[r * stride + 5 + c] = b[r * stride + 3 + c];
  }
  EXPECT_EQ(read(sum, "columns"), columns);
}

// By the definition: 8 bits of mantissa, ties to the even one.
TEST_P(Devices, RoundToBf16) {
  constexpr float kTop = std::numeric_limits<float>::max();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const Floats from = {1, 1.00390625f, 1.01171875f,  -1.00390625f, 1.003907f, 3.14159265f,
                       0, -0x1p-130f,  0x1.02p-126f, kTop,         kInfinity, 1.9999f};
  const Floats to = {1, 1,          1.015625f,    -1,        1.0078125f, 3.140625f,
                     0, -0x1p-130f, 0x1.02p-126f, kInfinity, kInfinity,  2};
  for (const auto& [of_floats, of_rounded] : {std::pair(0, 0), std::pair(1, 0), std::pair(0, 1)}) {
    DeviceFloats floats = put(from, of_floats);
    DeviceFloats rounded = poisoned(words(Precision::bf16, from.size()), of_rounded);
    on().round(floats, rounded);
    EXPECT_EQ(decoded(Precision::bf16, rounded.read("rounded"), from.size()), to);
  }
}

/// The passes of a stage, as they run on `device`.
struct StageResults {
  Floats output, input_gradient, split, fused;
};

StageResults run_stage(const Device& device, const Stage& stage, const Floats& p, const Floats& x,
                       const Floats& t, const Floats& g, bool source) {
  const Backend& on = device.backend();
  const Precision precision = stage.precision();
  const Floats encoded_input = encoded(stage.reads_ids() ? Precision::fp32 : precision, x);
  DeviceFloats parameters(device, rounded_weights(stage, p));
  DeviceFloats input(device, encoded_input);
  DeviceFloats target(device, t);
  DeviceFloats gradient(device, encoded(precision, g));
  DeviceFloats output(device, stage.is_sink() ? 1 : stage.output_size());
  DeviceFloats stash(device, stage.stash_size());
  DeviceFloats input_gradient(device, encoded_input.size());
  DeviceFloats gradient_stash(device, stage.gradient_stash_size());
  DeviceFloats split(device, Floats(p.size(), 0.0f));
  DeviceFloats fused(device, Floats(p.size(), 0.0f));
  DeviceFloats scratch(device, stage.scratch_size(device.is_gpu()));
  const ConstMemory inputs[] = {input};
  const ConstMemory gradients[] = {gradient};
  const Memory input_gradients[] = {input_gradient};
  const auto from = std::span(gradients).first(stage.is_sink() ? 0 : 1);
  const auto to = std::span(input_gradients).first(source ? 0 : 1);
  stage.forward(parameters, inputs, target, output, stash, scratch, on);
  stage.backward_input(parameters, stash, from, 0.5f, to, gradient_stash, scratch, on);
  stage.backward_weights(stash, gradient_stash, split, scratch, on);
  stage.backward(parameters, stash, from, 0.5f, to, fused, scratch, on);
  scratch.read("scratch");
  stash.read("stash");
  gradient_stash.read("gradient stash");
  return {stage.is_sink() ? output.read("loss") : decoded(precision, output.read("output"), g.size()),
          source ? Floats{} : decoded(precision, input_gradient.read("input gradient"), x.size()),
          split.read("gradient of B and W"), fused.read("gradient of BW")};
}

void Devices::expect_stages_of_the_cpu(ModelConfig config, int microbatch_size, int stages) const {
  config.precision = precision_;
  const Network network = build_network(config, microbatch_size, stages);
  // In bf16 both devices round between layers, and a block has ten in a row.
  const double tolerance = precision_ == Precision::bf16 ? 4 * tolerance_ : tolerance_;
  for (std::size_t s = 0; s < network.stages.size(); ++s) {
    const Stage& stage = network.stages[s];
    const Floats parameters = numbers(stage.parameter_size(), 1, 0.3);
    const std::size_t inputs = stage.rows() * stage.input_columns()[0];
    const Floats input = stage.reads_ids() ? random_ids(inputs, 256, 2) : numbers(inputs, 2);
    const Floats target = random_ids(stage.rows() * stage.target_columns(), 256, 3);
    const Floats gradient = numbers(stage.rows() * stage.output_columns(), 4);
    const StageResults expected = run_stage(Cpu(), stage, parameters, input, target, gradient, s == 0);
    const StageResults results = run_stage(*device_, stage, parameters, input, target, gradient, s == 0);
    const std::string name = "stage " + std::to_string(s) + " ";
    expect_close(results.output, expected.output, name + "output", tolerance);
    expect_close(results.input_gradient, expected.input_gradient, name + "input gradient", tolerance);
    expect_close(results.split, expected.split, name + "gradient of B and W", tolerance);
    expect_close(results.fused, expected.fused, name + "gradient of BW", tolerance);
  }
}

// Stages of a GPT: embedding, blocks with residual connections, head with loss.
TEST_P(Devices, StagesAreThoseOfTheCpu) {
  SCOPED_TRACE("STARPIPE_TEST_SEED=" + std::to_string(seed()));
  ModelConfig config;
  config.layers = 2;
  config.hidden = 24;
  config.heads = 2;
  config.context = 33;
  expect_stages_of_the_cpu(config, 2, 3);
}

// Of odd sizes, so that weights and biases start at any element.
TEST_P(Devices, LayersMayStartAnywhere) {
  SCOPED_TRACE("STARPIPE_TEST_SEED=" + std::to_string(seed()));
  ModelConfig config;
  config.kind = "mlp";
  config.inputs = 5;
  config.hidden = 7;
  config.outputs = 3;
  expect_stages_of_the_cpu(config, 33, 1);
}

INSTANTIATE_TEST_SUITE_P(All, Devices, targets, [](const auto& test) { return label(test.param); });

}  // namespace
}  // namespace starpipe::model
