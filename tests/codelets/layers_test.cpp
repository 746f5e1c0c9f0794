// SPDX-License-Identifier: Apache-2.0
// Every layer and loss on the CPU: gradients against central differences, results against their formulas in
// double.
#include <cmath>
#include <ostream>
#include <set>
#include <stdexcept>

#include <cblas.h>
#include <gtest/gtest.h>

#include "codelets/cpu/math.hpp"
#include "codelets/exact.hpp"
#include "model/gradients.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/registration.hpp"
#include "starpipe/model/layer.hpp"

namespace starpipe::model {
namespace {

using namespace testing;

struct Case {
  std::string label;
  LayerSpec spec;
  bool ids = false;  // whether the input is token ids
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.label; }

std::vector<Case> cases() {
  return {
      {"embedding", {"embedding", "t", 12, 1, {{"vocabulary", 11}, {"context", 4}, {"outputs", 5}}}, true},
      {"embedding_no_positions", {"embedding", "t", 12, 1, {{"vocabulary", 11}, {"outputs", 5}}}, true},
      {"embedding_shard", {"embedding", "t", 12, 1, {{"vocabulary", 3}, {"outputs", 5}, {"first", 1}}}, true},
      {"partial_cross_entropy", {"partial_cross_entropy", "h", 12, 7, {{"first", 2}}}},
      {"positions", {"positions", "p", 12, 5, {{"context", 4}}}},
      {"layernorm", {"layernorm", "n", 7, 13, {}}},
      {"layernorm_wide", {"layernorm", "n", 3, 64, {}}},
      {"rmsnorm", {"rmsnorm", "n", 7, 13, {{"epsilon", 1e-6}}}},
      {"rmsnorm_wide", {"rmsnorm", "n", 3, 64, {{"epsilon", 0.1}}}},
      {"linear", {"linear", "l", 9, 6, {{"outputs", 5}}}},
      {"linear_no_bias", {"linear", "l", 9, 6, {{"outputs", 5}, {"bias", 0}}}},
      {"linear_conv1d", {"linear", "l", 9, 6, {{"outputs", 5}, {"conv1d", 1}}}},
      {"linear_conv1d_no_bias", {"linear", "l", 9, 6, {{"outputs", 5}, {"conv1d", 1}, {"bias", 0}}}},
      {"linear_parts", {"linear", "l", 9, 6, {{"outputs", 5}, {"bias", 0}}, {{"a", 3}, {"b", 2}}}},
      {"gelu", {"gelu", "g", 7, 9, {}}},
      {"swiglu", {"swiglu", "s", 7, 18, {}}},
      {"rotary", {"rotary", "r", 10, 21, {{"heads", 3}, {"size", 6}, {"context", 5}, {"theta", 10000}}}},
      {"attention", {"attention", "a", 10, 24, {{"heads", 2}, {"context", 5}}}},
      {"attention_one_token", {"attention", "a", 3, 12, {{"heads", 2}, {"context", 1}}}},
      // Two and three blocks of queries, the last block not full.
      {"attention_blocks", {"attention", "a", 160, 12, {{"heads", 2}, {"context", 80}}}},
      {"attention_long", {"attention", "a", 130, 12, {{"heads", 1}, {"context", 130}}}},
      {"attention_grouped", {"attention", "a", 160, 20, {{"heads", 6}, {"kv_heads", 2}, {"context", 80}}}},
      {"attention_one_key_head", {"attention", "a", 10, 15, {{"heads", 3}, {"kv_heads", 1}, {"context", 5}}}},
  };
}

class Layers : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    openblas_set_num_threads(1);
    layer_ = make_layer(GetParam().spec);
    std::size_t parameters = 0;
    for (const Parameter& parameter : layer_->parameters()) parameters += parameter.size();
    parameters_ = random_floats(parameters, 1, 0.7);
    input_ = random_floats(layer_->rows() * layer_->input_columns(), 2);
    if (GetParam().ids) {
      for (std::size_t i = 0; i < input_.size(); ++i) input_[i] = static_cast<float>(i * 7 % 5);
    }
    weights_ = random_floats(layer_->rows() * layer_->output_columns(), 3);
  }

  Floats forward(const Floats& parameters, const Floats& input, Floats* stash = nullptr) {
    Guarded output(layer_->rows() * layer_->output_columns());
    Guarded kept(layer_->stash_size());
    for (std::size_t r = 0; r < layer_->target_size(); ++r)
      kept.span()[layer_->target_offset() + r] = target_of_row(GetParam().spec, r);
    Guarded scratch(layer_->scratch_size());
    layer_->forward({parameters, input, output, kept, scratch});
    output.expect_whole("output");
    kept.expect_whole("stash");
    scratch.expect_guards("scratch");
    if (stash != nullptr) stash->assign(kept.span().begin(), kept.span().end());
    return {output.span().begin(), output.span().end()};
  }

  Floats backward_input(const Floats& stash) {
    Guarded gradient(input_.size());
    Guarded scratch(layer_->scratch_size());
    layer_->backward_input({parameters_, stash, weights_, gradient, scratch});
    gradient.expect_whole("input gradient");
    scratch.expect_guards("scratch");
    return {gradient.span().begin(), gradient.span().end()};
  }

  Floats backward_weights(const Floats& stash, float start) {
    Guarded gradient(parameters_.size(), start);
    Guarded scratch(layer_->scratch_size());
    layer_->backward_weights({stash, weights_, gradient, scratch});
    gradient.expect_whole("parameter gradient");
    scratch.expect_guards("scratch");
    return {gradient.span().begin(), gradient.span().end()};
  }

  std::unique_ptr<Layer> layer_;
  Floats parameters_;
  Floats input_;
  Floats weights_;  // the scalar whose gradient is taken is the dot product of the output and these
};

TEST_P(Layers, InputGradientMatchesFiniteDifferences) {
  Floats stash;
  forward(parameters_, input_, &stash);
  const Floats gradient = backward_input(stash);
  if (GetParam().ids) {
    for (const float value : gradient) EXPECT_EQ(value, 0.0f);
    return;
  }
  const auto f = [&](const Floats& x) { return dot(forward(parameters_, x), weights_); };
  expect_gradient(f, input_, gradient, 0, gradient.size(), "input");
}

TEST_P(Layers, ParameterGradientsMatchFiniteDifferences) {
  Floats stash;
  forward(parameters_, input_, &stash);
  const Floats gradient = backward_weights(stash, 0);
  const auto f = [&](const Floats& p) { return dot(forward(p, input_), weights_); };
  std::size_t first = 0;
  for (const Parameter& parameter : layer_->parameters()) {
    expect_gradient(f, parameters_, gradient, first, parameter.size(), parameter.name);
    first += parameter.size();
  }
  EXPECT_EQ(first, gradient.size());
}

TEST_P(Layers, WeightGradientsAreAdded) {
  Floats stash;
  forward(parameters_, input_, &stash);
  const Floats from_zero = backward_weights(stash, 0);
  const Floats from_three = backward_weights(stash, 3);
  for (std::size_t i = 0; i < from_zero.size(); ++i) {
    EXPECT_NEAR(from_three[i] - 3, from_zero[i], 1e-5 * (3 + std::abs(from_zero[i]))) << i;
  }
}

TEST_P(Layers, NaNIsNotHidden) {
  if (GetParam().ids) GTEST_SKIP() << "ids";
  input_[input_.size() - 1] = not_a_number;
  Floats output(layer_->rows() * layer_->output_columns());
  Floats stash(layer_->stash_size());
  Floats scratch(layer_->scratch_size());
  layer_->forward({parameters_, input_, output, stash, scratch});
  EXPECT_TRUE(std::any_of(output.begin(), output.end(), [](float y) { return std::isnan(y); }));
}

INSTANTIATE_TEST_SUITE_P(All, Layers, ::testing::ValuesIn(cases()),
                         [](const auto& test) { return test.param.label; });

TEST(Registry, EveryKindIsTestedHere) {
  std::set<std::string> tested;
  for (const Case& c : cases()) tested.insert(c.spec.kind);
  for (const std::string& kind : layer_kinds()) {
    EXPECT_TRUE(tested.contains(kind))
        << "layer " << kind << ": add it to cases() in tests/codelets/layers_test.cpp";
  }
  EXPECT_EQ(loss_kinds(), (std::vector<std::string>{"cross_entropy", "joined_cross_entropy", "mse"}));
}

TEST(Registry, RefusesInvalidLayersAndLosses) {
  EXPECT_THROW(make_layer({"conv", "c", 1, 1, {}}), std::invalid_argument);
  EXPECT_THROW(make_layer({"gelu", "g", 0, 1, {}}), std::invalid_argument);
  EXPECT_THROW(make_layer({"gelu", "g", 1, 1, {{"approximate", 1}}}), std::invalid_argument);
  EXPECT_THROW(make_layer({"linear", "l", 1, 1, {}}), std::invalid_argument);
  EXPECT_THROW(make_layer({"linear", "l", 1, 1, {{"outputs", 1.5}}}), std::invalid_argument);
  EXPECT_THROW(make_layer({"linear", "l", 1, 1, {{"outputs", 2}, {"output", 2}}}), std::invalid_argument);
  EXPECT_THROW(make_layer({"attention", "a", 4, 12, {{"heads", 3}, {"context", 4}}}), std::invalid_argument);
  EXPECT_THROW(make_layer({"attention", "a", 4, 12, {{"heads", 2}, {"context", 3}}}), std::invalid_argument);
  EXPECT_THROW(make_layer({"attention", "a", 4, 12, {{"heads", 4}, {"kv_heads", 3}, {"context", 4}}}),
               std::invalid_argument);
  EXPECT_THROW(make_layer({"attention", "a", 4, 12, {{"heads", 4}, {"kv_heads", 0}, {"context", 4}}}),
               std::invalid_argument);
  EXPECT_THROW(make_layer({"swiglu", "s", 4, 7, {}}), std::invalid_argument);
  const auto rotary = [](double heads, double size, double context) {
    return make_layer(
        {"rotary", "r", 4, 12, {{"heads", heads}, {"size", size}, {"context", context}, {"theta", 10000}}});
  };
  EXPECT_THROW(rotary(2, 5, 4), std::invalid_argument);
  EXPECT_THROW(rotary(2, 8, 4), std::invalid_argument);
  EXPECT_THROW(rotary(2, 4, 3), std::invalid_argument);
  EXPECT_NO_THROW(rotary(2, 4, 2));
  EXPECT_THROW(make_layer({"linear", "l", 1, 1, {{"outputs", 3}, {"bias", 0}}, {{"a", 1}, {"b", 1}}}),
               std::invalid_argument);
  EXPECT_THROW(make_layer({"linear", "l", 1, 1, {{"outputs", 2}}, {{"a", 1}, {"b", 1}}}),
               std::invalid_argument);
  EXPECT_THROW(make_layer({"gelu", "g", 1, 1, {}, {{"a", 1}}}), std::invalid_argument);
  EXPECT_THROW(make_loss("hinge", 1, 1), std::invalid_argument);
  EXPECT_THROW(make_loss("joined_cross_entropy", 1, 3), std::invalid_argument);
  EXPECT_THROW(make_layer({"partial_cross_entropy", "h", 1, 1, {{"first", 16777216.0}}}),
               std::invalid_argument);
  EXPECT_THROW(
      make_layer({"embedding", "e", 1, 1, {{"vocabulary", 2}, {"first", 1}, {"context", 1}, {"outputs", 1}}}),
      std::invalid_argument);
  EXPECT_THROW(make_loss("cross_entropy", 1, (std::size_t{1} << 24U) + 1), std::invalid_argument);
  EXPECT_THROW(
      make_layer({"embedding", "e", 1, 1, {{"vocabulary", 16777217.0}, {"context", 1}, {"outputs", 1}}}),
      std::invalid_argument);
  EXPECT_THROW(make_layer({"gelu", "g", std::size_t{1} << 31U, 1, {}}), InputError);
  EXPECT_THROW(make_layer({"linear", "l", 1, 1, {{"outputs", 2147483648.0}}}), InputError);
}

TEST(Registry, KeepsTheErrorOfANameThatIsTaken) {
  EXPECT_FALSE(register_layer("gelu", {}));
  EXPECT_FALSE(register_loss("mse", {}));
  EXPECT_THROW(make_layer({"gelu", "g", 1, 1, {}}), InputError);
  EXPECT_THROW(make_loss("mse", 1, 1), InputError);
  EXPECT_EQ(take_registration_errors(), (std::vector<std::string>{"layer kind gelu is registered twice",
                                                                  "loss kind mse is registered twice"}));
  EXPECT_NE(make_layer({"gelu", "g", 1, 1, {}}), nullptr);
}

}  // namespace
}  // namespace starpipe::model
