// SPDX-License-Identifier: Apache-2.0
// Losses, optimizers and the other functions of a Backend, on each device, against exact results; and whole
// stages against the CPU.
#include <array>
#include <cstring>
#include <limits>
#include <numeric>
#include <tuple>

#include "codelets/on_device.hpp"
#include "starpipe/model/cuda_layer.hpp"
#include "starpipe/model/network.hpp"
#include "starpipe/model/optimizer.hpp"
#include "support/networks.hpp"

namespace starpipe::model {
namespace {

using namespace testing;

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
  on().forward(*loss, {input, on_device, stash, mean, scratch});
  on().backward_input(*loss, {stash, 0.25f, gradient, scratch});
  scratch.read("scratch");

  const auto f = [&, &kind = kind, rows = rows, columns = columns](const Doubles& at) {
    return exact_loss(kind, rows, columns, at, doubles(wanted));
  };
  const double expected = f(doubles(x));
  // Random pairs of columns give a joined loss of either sign: a sum of numbers that may cancel.
  const double terms = kind == "joined_cross_entropy" ? static_cast<double>(columns) : 0;
  const double allowed = 1e-5 * (std::abs(expected) + terms) + 1e-9;
  EXPECT_NEAR(mean.read("loss")[0], expected, allowed);
  const auto quarter = [&](const Doubles& at) { return 0.25 * f(at); };
  expect_slopes(quarter, doubles(x), decoded(precision_, gradient.read("gradient"), x.size()), 0, x.size(),
                "gradient", tolerance_);
  Floats kept(loss->stash_size());
  loss->forward(x, wanted, kept);
  const auto numbers_of = [&](const DeviceFloats& of) {
    return decoded(precision_, of.read("stash"), loss->stash_size());
  };
  expect_close(numbers_of(stash), kept, "stash", tolerance_);

  // Without the mean loss, as F runs for the second time under recomputation.
  DeviceFloats again = poisoned(loss->stash_words());
  on().forward(*loss, {input, on_device, again, {}, scratch});
  EXPECT_EQ(numbers_of(again), numbers_of(stash));

  // Arrays may begin at any word: shifts one of the four arrays at a time.
  for (int shifted = 0; shifted < 4; ++shifted) {
    const auto shift = [shifted](int array) { return array == shifted ? std::size_t{1} : std::size_t{0}; };
    DeviceFloats input_there = put_array(x, shift(0));
    DeviceFloats target_there = put(wanted, shift(1));
    DeviceFloats stash_there = poisoned(loss->stash_words(), shift(2));
    DeviceFloats gradient_there = poisoned(words(precision_, x.size()), shift(3));
    on().forward(*loss, {input_there, target_there, stash_there, mean, scratch});
    on().backward_input(*loss, {stash_there, 0.25f, gradient_there, scratch});
    EXPECT_NEAR(mean.read("loss")[0], expected, allowed);
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
// Rows of 64 columns are whole packs. Wider rows than a warp takes: 2051 columns are not whole packs, 4096
// are.
INSTANTIATE_TEST_SUITE_P(Wide, LossPasses,
                         ::testing::Combine(targets, ::testing::Values("cross_entropy", "mse"),
                                            ::testing::Values(3), ::testing::Values(64, 2051, 4096)),
                         loss_label);
// Two columns of each shard.
INSTANTIATE_TEST_SUITE_P(Joined, LossPasses,
                         ::testing::Combine(targets, ::testing::Values("joined_cross_entropy"),
                                            ::testing::Values(1, 3, 300), ::testing::Values(2, 6, 130)),
                         loss_label);

class Devices : public OnDevice, public ::testing::WithParamInterface<Target> {
 protected:
  void SetUp() override { start(GetParam()); }
  void expect_results_of_the_cpu(ModelConfig config, int microbatch_size, int stages) const;
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
    // Ranges may begin at any number; clipping scales the gradient.
    const std::array ranges = {DecayRange{0, n / 3, true}, DecayRange{n / 3, n - n / 3, false}};
    for (int step = 1; step <= 3; ++step) {
      const Floats g = random(n, 1 + static_cast<std::uint64_t>(step));
      DeviceFloats gradient = put(g);
      const Update update = {step, config.learning_rate, step == 3 ? 0.3f : 1, ranges};
      on().update(config, update, gradient, parameters, kept);
      optimizer_step(config, update, g, w, state);
    }
    expect_close(parameters.read("parameters"), w, config.kind, 1e-5);
    expect_close(kept.read("state"), state, config.kind + " state", 1e-5);
  }
}

// The bits equal the CPU's, wherever the values begin. 70 parts are more than a kernel takes at once.
TEST_P(Devices, SumsOfSquares) {
  SCOPED_TRACE("STARPIPE_TEST_SEED=" + std::to_string(seed()));
  std::vector<std::size_t> sizes = {1, 31, 4096, 5, 4097, 40 * 4096 + 77};
  for (std::size_t i = 0; i < 64; ++i) sizes.push_back(1 + i);
  const Floats values = random(std::accumulate(sizes.begin(), sizes.end(), std::size_t{0}), 1);
  std::vector<double> expected;
  std::size_t first = 0;
  for (const std::size_t size : sizes) {
    expected.push_back(sum_of_squares(std::span(values).subspan(first, size)));
    first += size;
  }
  for (const std::size_t shift : {0, 1}) {
    DeviceFloats there = put(values, shift);
    DeviceFloats scratch = poisoned(norm_scratch_words(sizes));
    std::vector<double> sums(sizes.size());
    on().sum_squares(there, sizes, sums, scratch);
    scratch.read("scratch");  // waits
    EXPECT_EQ(sums, expected);
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

// By the definition of bf16: 8 bits of mantissa, ties to even.
TEST_P(Devices, RoundToBf16) {
  constexpr float largest = std::numeric_limits<float>::max();
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const Floats from = {1, 1.00390625f, 1.01171875f,  -1.00390625f, 1.003907f, 3.14159265f,
                       0, -0x1p-130f,  0x1.02p-126f, largest,      infinity,  1.9999f};
  const Floats to = {1, 1,          1.015625f,    -1,       1.0078125f, 3.140625f,
                     0, -0x1p-130f, 0x1.02p-126f, infinity, infinity,   2};
  for (const auto& [of_floats, of_rounded] : {std::pair(0, 0), std::pair(1, 0), std::pair(0, 1)}) {
    DeviceFloats floats = put(from, of_floats);
    DeviceFloats rounded = poisoned(words(Precision::bf16, from.size()), of_rounded);
    on().round(floats, rounded);
    EXPECT_EQ(decoded(Precision::bf16, rounded.read("rounded"), from.size()), to);
  }
}

// Wherever an array starts, wherever the value is, and not in the words behind the numbers.
TEST_P(Devices, FindNonFinite) {
  constexpr float largest = 0x1.fep127f;  // of bf16
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (const std::size_t count : {std::size_t{1}, std::size_t{303}}) {
    Floats values = numbers(count, 1);
    values[count / 2] = -largest;
    for (const int offset : {0, 1}) {
      const auto found = [&](const Floats& from) {
        Floats padded = from;
        padded.push_back(infinity);
        DeviceFloats there = put_array(padded, offset);
        Floats flag = {0};
        DeviceFloats flag_there = put(flag);
        on().find_nonfinite(precision_, there, from.size(), flag_there.span()[0]);
        return flag_there.read("flag")[0];
      };
      EXPECT_EQ(found(values), 0);
      for (const float bad : {infinity, -infinity, std::numeric_limits<float>::quiet_NaN()}) {
        for (const std::size_t at : {std::size_t{0}, count - 1}) {
          Floats spoilt = values;
          spoilt[at] = bad;
          EXPECT_EQ(found(spoilt), 1) << bad << " at " << at;
        }
      }
    }
  }
}

/// The results of a stage's passes: F, then B and W (split), then BW (fused).
struct StageResults {
  Floats output, input_gradient, split, fused;
};

/// Runs all passes of a stage on `device`. p: parameters, x: input, t: target, g: gradient of the output.
StageResults run_stage(const Device& device, const Stage& stage, const Floats& p, const Floats& x,
                       const Floats& t, const Floats& g, bool source) {
  const Backend& on = device.backend();
  const Precision precision = stage.precision();
  const Floats encoded_input = encoded(stage.reads_ids() ? Precision::fp32 : precision, x);
  DeviceFloats parameters(device, rounded_weights(precision, p));
  DeviceFloats input(device, encoded_input);
  DeviceFloats target(device, t);
  DeviceFloats gradient(device, encoded(stage.output_precision(), g));
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
  stage.backward({.parameters = parameters,
                  .stash = stash,
                  .output_gradients = from,
                  .loss_scale = 0.5f,
                  .input_gradients = to,
                  .gradient_stash = gradient_stash,
                  .scratch = scratch},
                 on);
  stage.backward_weights(stash, gradient_stash, split, scratch, on);
  stage.backward({.parameters = parameters,
                  .stash = stash,
                  .output_gradients = from,
                  .loss_scale = 0.5f,
                  .input_gradients = to,
                  .parameter_gradient = fused,
                  .scratch = scratch},
                 on);
  scratch.read("scratch");
  stash.read("stash");
  gradient_stash.read("gradient stash");
  return {stage.is_sink() ? output.read("loss")
                          : decoded(stage.output_precision(), output.read("output"), g.size()),
          source ? Floats{} : decoded(precision, input_gradient.read("input gradient"), x.size()),
          split.read("gradient of B and W"), fused.read("gradient of BW")};
}

void Devices::expect_results_of_the_cpu(ModelConfig config, int microbatch_size, int stages) const {
  config.precision = precision_;
  const Network network = build_network(config, microbatch_size, stages);
  // In bf16 both devices round between layers, and a transformer block has ten layers in a row.
  const double tolerance = precision_ == Precision::bf16 ? 4 * tolerance_ : tolerance_;
  for (std::size_t s = 0; s < network.stages.size(); ++s) {
    const Stage& stage = network.stages[s];
    if (stage.input_columns().size() > 1) continue;  // it has a layer or loss of other tests
    const bool source = network.graph.pred(static_cast<int>(s)).empty();
    const Floats parameters = numbers(stage.parameter_size(), 1, 0.3);
    const std::size_t inputs = stage.rows() * stage.input_columns()[0];
    const Floats input = stage.reads_ids() ? random_ids(inputs, 256, 2) : numbers(inputs, 2);
    const Floats target = random_ids(stage.rows() * stage.target_columns(), 256, 3);
    const Floats gradient = numbers(stage.rows() * stage.output_columns(), 4);
    const StageResults expected = run_stage(Cpu(), stage, parameters, input, target, gradient, source);
    const StageResults results = run_stage(*device_, stage, parameters, input, target, gradient, source);
    const std::string name = "stage " + std::to_string(s) + " ";
    expect_close(results.output, expected.output, name + "output", tolerance);
    expect_close(results.input_gradient, expected.input_gradient, name + "input gradient", tolerance);
    expect_close(results.split, expected.split, name + "gradient of B and W", tolerance);
    expect_close(results.fused, expected.fused, name + "gradient of BW", tolerance);
  }
}

// Stages of a GPT: embedding, blocks with residual connections, head with loss.
TEST_P(Devices, StagesMatchTheCpu) {
  SCOPED_TRACE("STARPIPE_TEST_SEED=" + std::to_string(seed()));
  expect_results_of_the_cpu(small("gpt", {{"hidden", 24}, {"context", 33}}), 2, 3);
}

// Stages of a Llama, whose query heads share heads of keys and values.
TEST_P(Devices, LlamaStagesMatchTheCpu) {
  SCOPED_TRACE("STARPIPE_TEST_SEED=" + std::to_string(seed()));
  expect_results_of_the_cpu(small("llama", {{"hidden", 24}, {"intermediate", 20}, {"context", 33}}), 2, 3);
}

// Embedding and head in shards, the head's shards with the target.
TEST_P(Devices, ShardsOfTheVocabularyMatchTheCpu) {
  SCOPED_TRACE("STARPIPE_TEST_SEED=" + std::to_string(seed()));
  ModelConfig config = small("gpt", {{"layers", 1}, {"hidden", 24}, {"context", 33}});
  config.vocabulary.shards = 3;
  expect_results_of_the_cpu(config, 2, 1);
}

// Odd sizes, so that weights and biases begin at any element.
TEST_P(Devices, LayersMayStartAnywhere) {
  SCOPED_TRACE("STARPIPE_TEST_SEED=" + std::to_string(seed()));
  expect_results_of_the_cpu(small("mlp", {{"inputs", 5}, {"hidden", 7}}), 33, 1);
}

INSTANTIATE_TEST_SUITE_P(All, Devices, targets, [](const auto& test) { return label(test.param); });

}  // namespace
}  // namespace starpipe::model
