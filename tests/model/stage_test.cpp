// SPDX-License-Identifier: Apache-2.0
// Stages of every form: gradients against central differences, and the split backward pass against the fused
// one.
#include "starpipe/model/stage.hpp"

#include <ostream>
#include <stdexcept>

#include <cblas.h>
#include <gtest/gtest.h>

#include "model/gradients.hpp"

namespace starpipe::model {
namespace {

using namespace testing;

constexpr std::size_t context_length = 6;
constexpr std::size_t row_count = 2 * context_length;

StageOp layer(const LayerSpec& spec) { return {StageOp::Kind::layer, make_layer(spec)}; }
StageOp begin() { return {StageOp::Kind::residual_begin, nullptr}; }
StageOp end() { return {StageOp::Kind::residual_end, nullptr}; }
StageOp linear(const std::string& name, std::size_t inputs, double outputs) {
  return layer({"linear", name, row_count, inputs, {{"outputs", outputs}}});
}

StageOp embedding() {
  return layer({"embedding",
                "e",
                row_count,
                1,
                {{"vocabulary", 11.0}, {"context", double{context_length}}, {"outputs", 8.0}}});
}

std::vector<StageOp> block() {
  return {begin(),
          layer({"layernorm", "ln_1", row_count, 8, {}}),
          linear("c_attn", 8, 24),
          layer({"attention", "attn", row_count, 24, {{"heads", 2.0}, {"context", double{context_length}}}}),
          linear("c_proj", 8, 8),
          end(),
          begin(),
          layer({"layernorm", "ln_2", row_count, 8, {}}),
          linear("c_fc", 8, 16),
          layer({"gelu", "act", row_count, 16, {}}),
          linear("proj", 16, 8),
          end()};
}

std::vector<StageOp> joined(std::vector<std::vector<StageOp>> parts) {
  std::vector<StageOp> all;
  for (const std::vector<StageOp>& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

struct Form {
  std::string label;
  std::vector<StageOp> ops;
  std::vector<std::size_t> inputs;
  std::string loss;
  bool source = false;
  bool ids = false;
  int successors = 1;
};

void PrintTo(const Form& form, std::ostream* out) { *out << form.label; }

std::vector<Form> forms() {
  const std::vector<StageOp> head = {
      layer({"layernorm", "ln_f", row_count, 8, {}}),
      layer({"linear", "head", row_count, 8, {{"outputs", 11.0}, {"bias", 0.0}}})};
  const StageOp gelu = layer({"gelu", "g", row_count, 8, {}});
  return {
      {"embedding", {embedding()}, {1}, "", true, true},
      {"source_with_block", joined({{embedding()}, block()}), {1}, "", true, true},
      {"middle", joined({block(), block()}), {8}, ""},
      {"sink", joined({block(), head}), {8}, "cross_entropy"},
      {"all_in_one", joined({{embedding()}, block(), head}), {1}, "cross_entropy", true, true},
      {"feature_source", {linear("a", 5, 8), gelu}, {5}, "", true},
      {"regression_sink", {linear("a", 8, 8), gelu, linear("b", 8, 3)}, {8}, "mse"},
      {"join", {linear("a", 9, 8), gelu}, {3, 5, 1}, ""},
      {"join_and_loss", {linear("a", 9, 4)}, {3, 6}, "mse"},
      {"join_into_residual", joined({{begin(), linear("a", 8, 8), end()}, block()}), {3, 5}, ""},
      {"two_successors", {linear("a", 5, 8), gelu}, {5}, "", false, false, 2},
      {"three_successors_of_residual", block(), {8}, "", false, false, 3},
      {"nested_residuals",
       {begin(), gelu, begin(), linear("a", 8, 16), layer({"gelu", "h", row_count, 16, {}}),
        linear("b", 16, 8), end(), begin(), begin(), linear("c", 8, 8), end(), end(), end(), gelu},
       {8},
       ""},
      {"source_with_gelu_first", {begin(), gelu, end(), linear("a", 8, 8), gelu}, {8}, "", true},
      {"no_parameters", {gelu}, {8}, ""},
      {"only_a_residual", {begin(), end()}, {8}, ""},
      {"only_loss", {}, {8}, "mse"},
      {"only_joined_loss", {}, {3, 5}, "mse"},
      {"only_a_join", {}, {3, 5}, ""},
  };
}

/// The results of a stage's passes.
struct Outcome {
  Floats output;
  std::vector<Floats> input_gradients;
  Floats parameter_gradient;
};

class Stages : public ::testing::TestWithParam<Form> {
 protected:
  void SetUp() override {
    openblas_set_num_threads(1);
    const Form& form = GetParam();
    std::size_t columns = 0;
    for (const std::size_t c : form.inputs) columns += c;
    for (const StageOp& op : form.ops) columns = op.layer ? op.layer->output_columns() : columns;
    stage_ = std::make_unique<Stage>(form.ops, row_count, form.inputs,
                                     form.loss.empty() ? nullptr : make_loss(form.loss, row_count, columns));
    parameters_ = random_floats(stage_->parameter_size(), 1, 0.5);
    for (std::size_t i = 0; i < form.inputs.size(); ++i) {
      inputs_.push_back(random_floats(row_count * form.inputs[i], 10 + i));
    }
    if (form.ids) {
      for (std::size_t r = 0; r < row_count; ++r) inputs_[0][r] = static_cast<float>(r * 7 % 11);
    }
    target_ = random_floats(row_count * stage_->target_columns(), 20);
    if (form.loss == "cross_entropy") {
      for (std::size_t r = 0; r < row_count; ++r) target_[r] = static_cast<float>(r * 3 % 11);
    }
    for (int i = 0; i < (stage_->is_sink() ? 0 : form.successors); ++i) {
      output_gradients_.push_back(
          random_floats(row_count * stage_->output_columns(), 30 + static_cast<std::uint64_t>(i)));
    }
  }

  Floats forward(const Floats& parameters, const std::vector<Floats>& inputs, std::span<float> stash) {
    Guarded output(stage_->is_sink() ? 1 : row_count * stage_->output_columns());
    Guarded scratch(stage_->scratch_size());
    const std::vector<ConstMemory> in(inputs.begin(), inputs.end());
    stage_->forward(parameters, in, target_, output, stash, scratch);
    output.expect_whole("output");
    scratch.expect_guards("scratch");
    return {output.span().begin(), output.span().end()};
  }

  /// The scalar whose gradient the passes take.
  double objective(const Floats& parameters, const std::vector<Floats>& inputs) {
    Floats stash(stage_->stash_size(), not_a_number);
    const Floats output = forward(parameters, inputs, stash);
    if (stage_->is_sink()) return static_cast<double>(loss_scale) * output[0];
    double sum = 0;
    for (const Floats& gradient : output_gradients_) sum += dot(output, gradient);
    return sum;
  }

  Outcome run(bool split) {
    Outcome outcome;
    Guarded stash(stage_->stash_size());
    outcome.output = forward(parameters_, inputs_, stash);
    stash.expect_whole("stash");
    std::vector<Guarded> gradients;
    if (!GetParam().source) {
      for (const Floats& input : inputs_) gradients.emplace_back(input.size());
    }
    std::vector<Memory> out;
    for (Guarded& gradient : gradients) out.push_back(gradient.span());
    const std::vector<ConstMemory> in(output_gradients_.begin(), output_gradients_.end());
    Guarded sums(stage_->parameter_size(), 0.0f);
    if (split) {
      Guarded kept(stage_->gradient_stash_size());
      {
        Guarded scratch(stage_->scratch_size());
        stage_->backward({.parameters = parameters_,
                          .stash = stash,
                          .output_gradients = in,
                          .loss_scale = loss_scale,
                          .input_gradients = out,
                          .gradient_stash = kept,
                          .scratch = scratch});
        scratch.expect_guards("scratch of B");
      }
      kept.expect_whole("gradient stash");
      Guarded scratch(stage_->scratch_size());  // new, as W must not rely on B's scratch
      stage_->backward_weights(stash, kept, sums, scratch);
      scratch.expect_guards("scratch of W");
    } else {
      Guarded scratch(stage_->scratch_size());
      stage_->backward({.parameters = parameters_,
                        .stash = stash,
                        .output_gradients = in,
                        .loss_scale = loss_scale,
                        .input_gradients = out,
                        .parameter_gradient = sums,
                        .scratch = scratch});
      scratch.expect_guards("scratch of BW");
    }
    sums.expect_whole("parameter gradient");
    outcome.parameter_gradient.assign(sums.span().begin(), sums.span().end());
    for (Guarded& gradient : gradients) {
      gradient.expect_whole("input gradient");
      outcome.input_gradients.emplace_back(gradient.span().begin(), gradient.span().end());
    }
    return outcome;
  }

  void expect_gradients(const Outcome& outcome) {
    const auto of_parameters = [&](const Floats& p) { return objective(p, inputs_); };
    std::size_t first = 0;
    for (const Parameter& parameter : stage_->parameters()) {
      expect_gradient(of_parameters, parameters_, outcome.parameter_gradient, first, parameter.size(),
                      parameter.name, 2e-3, 4e-3);
      first += parameter.size();
    }
    EXPECT_EQ(first, stage_->parameter_size());
    for (std::size_t i = 0; i < outcome.input_gradients.size(); ++i) {
      const auto of_input = [&](const Floats& x) {
        std::vector<Floats> inputs = inputs_;
        inputs[i] = x;
        return objective(parameters_, inputs);
      };
      expect_gradient(of_input, inputs_[i], outcome.input_gradients[i], 0, inputs_[i].size(),
                      "input " + std::to_string(i), 2e-3, 4e-3);
    }
  }

  static constexpr float loss_scale = 16;  // large, because a float loss has few digits for differences
  std::unique_ptr<Stage> stage_;
  Floats parameters_;
  std::vector<Floats> inputs_;
  Floats target_;
  std::vector<Floats> output_gradients_;
};

TEST_P(Stages, FusedBackwardMatchesFiniteDifferences) { expect_gradients(run(false)); }

TEST_P(Stages, SplitBackwardMatchesFiniteDifferences) { expect_gradients(run(true)); }

TEST_P(Stages, SplitAndFusedBackwardAreEqualToTheBit) {
  const Outcome fused = run(false);
  const Outcome split = run(true);
  EXPECT_EQ(fused.parameter_gradient, split.parameter_gradient);
  EXPECT_EQ(fused.input_gradients, split.input_gradients);
}

// Recomputation: the first F keeps no stash, the second writes only the stash.
TEST_P(Stages, OutputAndStashAloneAreEqualToTheBit) {
  Floats stash(stage_->stash_size(), not_a_number);
  const Floats output = forward(parameters_, inputs_, stash);
  const std::vector<ConstMemory> in(inputs_.begin(), inputs_.end());
  Guarded output_alone(output.size());
  Guarded scratch(stage_->scratch_size_without_stash());
  stage_->forward(parameters_, in, target_, output_alone, {}, scratch);
  output_alone.expect_whole("output");
  scratch.expect_guards("scratch");
  EXPECT_TRUE(std::ranges::equal(output_alone.span(), output));
  Guarded stash_alone(stash.size());
  stage_->forward(parameters_, in, target_, {}, stash_alone, scratch);
  stash_alone.expect_whole("stash");
  scratch.expect_guards("scratch");
  EXPECT_TRUE(std::ranges::equal(stash_alone.span(), stash));
}

TEST_P(Stages, WeightGradientsAddUpOverMicrobatches) {
  Floats stash(stage_->stash_size());
  Floats scratch(stage_->scratch_size());
  Floats kept(stage_->gradient_stash_size());
  forward(parameters_, inputs_, stash);
  std::vector<Floats> gradients;
  std::vector<Memory> out;
  if (!GetParam().source) {
    for (const Floats& input : inputs_) gradients.emplace_back(input.size());
    out.assign(gradients.begin(), gradients.end());
  }
  const std::vector<ConstMemory> in(output_gradients_.begin(), output_gradients_.end());
  stage_->backward({.parameters = parameters_,
                    .stash = stash,
                    .output_gradients = in,
                    .loss_scale = loss_scale,
                    .input_gradients = out,
                    .gradient_stash = kept,
                    .scratch = scratch});
  Floats once(stage_->parameter_size(), 0.0f);
  stage_->backward_weights(stash, kept, once, scratch);
  Floats twice(stage_->parameter_size(), 0.0f);
  stage_->backward_weights(stash, kept, twice, scratch);
  stage_->backward({.parameters = parameters_,
                    .stash = stash,
                    .output_gradients = in,
                    .loss_scale = loss_scale,
                    .input_gradients = out,
                    .parameter_gradient = twice,
                    .scratch = scratch});
  for (std::size_t i = 0; i < once.size(); ++i) {
    EXPECT_NEAR(twice[i], 2 * once[i], 1e-4 * (1 + std::abs(once[i])));
  }
}

INSTANTIATE_TEST_SUITE_P(All, Stages, ::testing::ValuesIn(forms()),
                         [](const auto& test) { return test.param.label; });

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
  const Stage stage(joined({block(), block()}), row_count, {8}, nullptr);
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
  stage.backward({.parameters = parameters,
                  .stash = stash,
                  .output_gradients = gradients,
                  .loss_scale = 1,
                  .input_gradients = out,
                  .parameter_gradient = sums,
                  .scratch = scratch},
                 counter);
  EXPECT_EQ(counter.copies, 0);
  stage.backward({.parameters = parameters,
                  .stash = stash,
                  .output_gradients = gradients,
                  .loss_scale = 1,
                  .input_gradients = out,
                  .gradient_stash = kept,
                  .scratch = scratch},
                 counter);
  EXPECT_EQ(counter.copies, 1);  // the gradient of the last layer's output, which the next stage owns
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
