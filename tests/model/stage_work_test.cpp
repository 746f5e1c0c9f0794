// SPDX-License-Identifier: Apache-2.0
// The work of a stage: the passes of its layers that it calls, what it copies, its sizes, and what it
// refuses.
#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "model/gradients.hpp"
#include "model/stage_parts.hpp"
#include "starpipe/model/backend.hpp"
#include "starpipe/model/stage.hpp"

namespace starpipe::model {
namespace {

using namespace testing;

/// A layer that doubles its input, and counts the calls of its backward passes.
class Spy final : public Layer {
 public:
  Spy() : Layer({"spy", "", row_count, 2, {}}) {}
  std::vector<Parameter> parameters() const override { return {{"spy", {1}, 0, 0}}; }
  double flops() const override { return 0; }
  void forward(const Forward& pass) const noexcept override {
    std::ranges::transform(pass.input, pass.output.begin(), [](float x) { return 2 * x; });
  }
  void backward_input(const Backward& pass) const noexcept override {
    ++input_passes;
    std::ranges::transform(pass.output_gradient, pass.input_gradient.begin(), [](float x) { return 2 * x; });
  }
  void backward_weights(const Weights& /*pass*/) const noexcept override { ++weight_passes; }
  mutable int input_passes = 0;
  mutable int weight_passes = 0;
};

TEST(Stage, BAndWDoOnlyTheirOwnWork) {
  const auto first = std::make_shared<Spy>();
  const auto second = std::make_shared<Spy>();
  const Stage stage(
      {layer({"gelu", "g", row_count, 2, {}}), {StageOp::Kind::layer, first}, {StageOp::Kind::layer, second}},
      row_count, {2}, nullptr);
  const Floats parameters(2);
  const Floats dy(2 * row_count, 1.0f);
  Floats stash(stage.stash_size());
  Floats kept(stage.gradient_stash_size());
  Floats scratch(stage.scratch_size());
  Floats sums(2);
  Floats dx(2 * row_count, not_a_number);
  const std::vector<ConstMemory> in = {dy};
  const std::vector<Memory> out = {dx};

  stage.backward({.parameters = parameters,
                  .stash = stash,
                  .output_gradients = in,
                  .loss_scale = 1,
                  .input_gradients = out,
                  .gradient_stash = kept,
                  .scratch = scratch});
  EXPECT_EQ(first->input_passes, 1);
  EXPECT_EQ(second->input_passes, 1);
  EXPECT_EQ(first->weight_passes + second->weight_passes, 0);
  stage.backward_weights(stash, kept, sums, scratch);
  EXPECT_EQ(first->input_passes + second->input_passes, 2);
  EXPECT_EQ(first->weight_passes, 1);
  EXPECT_EQ(second->weight_passes, 1);
  // As a source: no gradients below the first layer with parameters.
  stage.backward({.parameters = parameters,
                  .stash = stash,
                  .output_gradients = in,
                  .loss_scale = 1,
                  .input_gradients = {},
                  .parameter_gradient = sums,
                  .scratch = scratch});
  EXPECT_EQ(first->input_passes, 1);
  EXPECT_EQ(second->input_passes, 2);
  EXPECT_EQ(first->weight_passes, 2);
}

/// The CPU's backend, which counts copies of unchanged data.
class CopyCounter final : public Backend {
 public:
  void zero(Memory memory) const noexcept override { cpu_.zero(memory); }
  void copy(ConstMemory from, Memory to) const noexcept override {
    ++copies;
    cpu_.copy(from, to);
  }
  void add(Precision precision, ConstMemory a, ConstMemory b, Memory sum) const noexcept override {
    cpu_.add(precision, a, b, sum);
  }
  void copy_columns(const std::byte* from, std::size_t from_stride, std::byte* to, std::size_t to_stride,
                    std::size_t columns, std::size_t rows) const noexcept override {
    cpu_.copy_columns(from, from_stride, to, to_stride, columns, rows);
  }
  void round(std::span<const float> from, Memory to) const noexcept override { cpu_.round(from, to); }
  void find_nonfinite(Precision precision, ConstMemory values, std::size_t count,
                      float& found) const noexcept override {
    cpu_.find_nonfinite(precision, values, count, found);
  }
  void forward(const Layer& layer, const Forward& pass) const noexcept override {
    copies += layer.keeps_input() && pass.input.data() != pass.stash.data() ? 1 : 0;
    cpu_.forward(layer, pass);
  }
  void backward_input(const Layer& layer, const Backward& pass) const noexcept override {
    cpu_.backward_input(layer, pass);
  }
  void backward_weights(const Layer& layer, const Weights& pass) const noexcept override {
    cpu_.backward_weights(layer, pass);
  }
  void forward(const Loss& loss, const LossForward& pass) const noexcept override {
    cpu_.forward(loss, pass);
  }
  void backward_input(const Loss& loss, const LossBackward& pass) const noexcept override {
    cpu_.backward_input(loss, pass);
  }
  void update(const OptimizerConfig& config, const Update& update, std::span<const float> gradient,
              std::span<float> parameters, std::span<float> state) const noexcept override {
    cpu_.update(config, update, gradient, parameters, state);
  }
  void sum_squares(std::span<const float> values, std::span<const std::size_t> sizes, std::span<double> sums,
                   Memory scratch) const noexcept override {
    cpu_.sum_squares(values, sizes, sums, scratch);
  }

  mutable int copies = 0;

 private:
  const Backend& cpu_ = cpu_backend();
};

// Every activation and gradient of a transformer block is written to the place where it is needed next.
TEST(Stage, CopiesNothingBetweenItsLayers) {
  const Stage stage(chained({block(), block()}), row_count, {8}, nullptr);
  const Floats parameters = random_floats(stage.parameter_size(), 1);
  const Floats x = random_floats(row_count * 8, 2);
  const Floats dy = random_floats(row_count * 8, 3);
  Floats y(row_count * 8), dx(row_count * 8), sums(stage.parameter_size()), stash(stage.stash_size());
  Floats kept(stage.gradient_stash_size()), scratch(stage.scratch_size());
  const std::vector<ConstMemory> in = {x};
  const std::vector<ConstMemory> gradients = {dy};
  const std::vector<Memory> out = {dx};
  const CopyCounter counter;
  stage.forward(parameters, in, {}, y, stash, scratch, counter);
  Stage::Backward pass = {.parameters = parameters,
                          .stash = stash,
                          .output_gradients = gradients,
                          .loss_scale = 1,
                          .input_gradients = out,
                          .parameter_gradient = sums,
                          .scratch = scratch};
  stage.backward(pass, counter);
  EXPECT_EQ(counter.copies, 0);
  pass.parameter_gradient = {};
  pass.gradient_stash = kept;
  stage.backward(pass, counter);
  EXPECT_EQ(counter.copies, 1);  // the gradient of the last layer's output, which the next stage owns
}

// B and BW search each gradient that a layer with parameters gets, W and BW each sum.
TEST(Stage, FindsNumbersThatAreNotFinite) {
  const Stage stage({linear("a", 2, 3), linear("b", 3, 2)}, row_count, {2}, nullptr);
  const Floats parameters = random_floats(stage.parameter_size(), 1);
  const Floats x = random_floats(row_count * 2, 2);
  const std::vector<ConstMemory> in = {x};
  Floats y(row_count * 2), stash(stage.stash_size()), scratch(stage.scratch_size()), dx(row_count * 2);
  stage.forward(parameters, in, {}, y, stash, scratch);
  const std::vector<Memory> out = {dx};
  for (const bool is_spoilt : {false, true}) {
    Floats dy = random_floats(row_count * 2, 3);
    if (is_spoilt) dy.back() = not_a_number;
    const std::vector<ConstMemory> gradients = {dy};
    Floats kept(stage.gradient_stash_size(), not_a_number);  // nothing looks at the padding
    float found = 0;
    Stage::Backward pass = {.parameters = parameters,
                            .stash = stash,
                            .output_gradients = gradients,
                            .loss_scale = 1,
                            .input_gradients = out,
                            .gradient_stash = kept,
                            .scratch = scratch,
                            .found = &found};
    stage.backward(pass);
    EXPECT_EQ(found, is_spoilt ? 1 : 0);
  }
}

TEST(Stage, KnowsItsSizes) {
  const Stage stage({linear("a", 9, 8), layer({"gelu", "g", row_count, 8, {}})}, row_count, {3, 6}, nullptr);
  EXPECT_EQ(stage.rows(), row_count);
  EXPECT_EQ(stage.output_columns(), 8u);
  EXPECT_EQ(stage.target_columns(), 0u);
  EXPECT_FALSE(stage.is_sink());
  EXPECT_EQ(stage.parameter_size(), 9u * 8 + 8);
  EXPECT_EQ(stage.stash_size(), row_count * (9 + 8));
  EXPECT_EQ(stage.gradient_stash_size(), row_count * 8);  // of the linear layer only
  EXPECT_DOUBLE_EQ(stage.flops(), row_count * (2.0 * 9 * 8 + 20 * 8));
  EXPECT_EQ(stage.parameters().size(), 2u);
}

TEST(Stage, RefusesLayersThatDoNotFit) {
  const auto make = [](std::vector<StageOp> ops, std::vector<std::size_t> inputs,
                       std::shared_ptr<const Loss> loss = nullptr) {
    return Stage(std::move(ops), row_count, std::move(inputs), std::move(loss));
  };
  EXPECT_THROW(make({linear("a", 9, 8)}, {8}), std::invalid_argument);
  EXPECT_THROW(make({linear("a", 9, 8), linear("b", 9, 8)}, {9}), std::invalid_argument);
  EXPECT_THROW(make({begin(), linear("a", 9, 8), end()}, {9}), std::invalid_argument);
  EXPECT_THROW(make({begin(), linear("a", 9, 9)}, {9}), std::invalid_argument);
  EXPECT_THROW(make({end()}, {9}), std::invalid_argument);
  EXPECT_THROW(make({linear("a", 9, 8)}, {}), std::invalid_argument);
  EXPECT_THROW(make({StageOp{}}, {9}), std::invalid_argument);
  EXPECT_THROW(make({linear("a", 9, 8)}, {9}, make_loss("mse", row_count, 9)), std::invalid_argument);
  EXPECT_THROW(make({layer({"gelu", "g", row_count + 1, 9, {}})}, {9}), std::invalid_argument);
}

}  // namespace
}  // namespace starpipe::model
