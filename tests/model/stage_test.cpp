// SPDX-License-Identifier: Apache-2.0
// Stages of every form: gradients against central differences, and the split backward pass against the fused
// one.
#include "starpipe/model/stage.hpp"

#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <cblas.h>
#include <gtest/gtest.h>

#include "model/gradients.hpp"
#include "model/stage_parts.hpp"

namespace starpipe::model {
namespace {

using namespace testing;

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
      {"source_with_block", chained({{embedding()}, block()}), {1}, "", true, true},
      {"middle", chained({block(), block()}), {8}, ""},
      {"sink", chained({block(), head}), {8}, "cross_entropy"},
      {"all_in_one", chained({{embedding()}, block(), head}), {1}, "cross_entropy", true, true},
      {"feature_source", {linear("a", 5, 8), gelu}, {5}, "", true},
      {"regression_sink", {linear("a", 8, 8), gelu, linear("b", 8, 3)}, {8}, "mse"},
      {"join", {linear("a", 9, 8), gelu}, {3, 5, 1}, ""},
      {"join_and_loss", {linear("a", 9, 4)}, {3, 6}, "mse"},
      {"join_into_residual", chained({{begin(), linear("a", 8, 8), end()}, block()}), {3, 5}, ""},
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

}  // namespace
}  // namespace starpipe::model
