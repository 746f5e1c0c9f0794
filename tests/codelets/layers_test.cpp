// SPDX-License-Identifier: Apache-2.0
// Every layer and loss on the CPU: gradients against central differences, results against their formulas in
// double.
#include <array>
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

Floats run(const Layer& layer, const Floats& parameters, const Floats& input, Floats* kept = nullptr) {
  Floats output(layer.rows() * layer.output_columns(), not_a_number);
  Floats stash(layer.stash_size(), not_a_number);
  Floats scratch(layer.scratch_size(), not_a_number);
  layer.forward({parameters, input, output, stash, scratch});
  if (kept != nullptr) *kept = stash;
  return output;
}

TEST(Exp, MatchesTheLibraryToThreeRoundings) {
  double worst = 0;
  for (float x = -86.9f; x < 87.9f; x += 0.00713f) {
    const double exact = std::exp(static_cast<double>(x));
    worst = std::max(worst, std::abs(static_cast<double>(cpu::exp_of(x)) - exact) / exact);
  }
  EXPECT_LT(worst, 3 * 0x1p-24);
  EXPECT_EQ(cpu::exp_of(0), 1.0f);
  EXPECT_LT(cpu::exp_of(-1e30f), 1e-37f);
  EXPECT_GT(cpu::exp_of(1e30f), 1e38f);
  EXPECT_LT(cpu::exp_of(-std::numeric_limits<float>::infinity()), 1e-37f);
  EXPECT_TRUE(std::isnan(cpu::exp_of(not_a_number)));
}

TEST(Sums, DoNotDependOnTheLanes) {
  for (std::size_t n = 1; n < 40; ++n) {
    const Floats x = random_floats(n, n);
    double sum = 0;
    for (const float value : x) sum += static_cast<double>(value);
    EXPECT_NEAR(cpu::sum_of(n, [&](std::size_t i) { return x[i]; }), sum, 1e-5);
    EXPECT_EQ(cpu::max_of(x.data(), n), *std::max_element(x.begin(), x.end()));
  }
}

TEST(Linear, Conv1DStoresTheTranspose) {
  const auto linear = make_layer({"linear", "l", 4, 3, {{"outputs", 2}}});
  const auto conv = make_layer({"linear", "l", 4, 3, {{"outputs", 2}, {"conv1d", 1}}});
  EXPECT_EQ(linear->parameters()[0].shape, (std::vector<std::size_t>{2, 3}));
  EXPECT_EQ(conv->parameters()[0].shape, (std::vector<std::size_t>{3, 2}));
  const Floats x = random_floats(12, 1);
  const Floats y = run(*linear, {1, 2, 3, 4, 5, 6, 10, 20}, x);
  const Floats z = run(*conv, {1, 4, 2, 5, 3, 6, 10, 20}, x);
  for (std::size_t r = 0; r < 4; ++r) {
    EXPECT_NEAR(y[2 * r], x[3 * r] + 2 * x[3 * r + 1] + 3 * x[3 * r + 2] + 10, 1e-5);
    EXPECT_NEAR(y[2 * r + 1], 4 * x[3 * r] + 5 * x[3 * r + 1] + 6 * x[3 * r + 2] + 20, 1e-5);
    EXPECT_NEAR(z[2 * r], y[2 * r], 1e-5);
    EXPECT_NEAR(z[2 * r + 1], y[2 * r + 1], 1e-5);
  }
}

TEST(Linear, PartsAreTensorsOfOneMatrix) {
  const auto whole = make_layer({"linear", "l", 4, 3, {{"outputs", 3}, {"bias", 0}}});
  const auto parts = make_layer(
      {"linear", "l", 4, 3, {{"outputs", 3}, {"bias", 0}, {"deviation", 2}}, {{"a", 2}, {"b", 1}}});
  ASSERT_EQ(parts->parameters().size(), 2u);
  EXPECT_EQ(parts->parameters()[0].name, "l.a.weight");
  EXPECT_EQ(parts->parameters()[0].shape, (std::vector<std::size_t>{2, 3}));
  EXPECT_EQ(parts->parameters()[0].deviation, 2);
  EXPECT_EQ(parts->parameters()[1].name, "l.b.weight");
  EXPECT_EQ(parts->parameters()[1].shape, (std::vector<std::size_t>{1, 3}));
  const Floats x = random_floats(12, 1);
  const Floats weights = random_floats(9, 2);
  EXPECT_EQ(run(*parts, weights, x), run(*whole, weights, x));
}

TEST(LayerNorm, MatchesTheFormula) {
  const std::size_t columns = 37;
  const auto layer = make_layer({"layernorm", "n", 2, columns, {}});
  const Floats parameters = random_floats(2 * columns, 1);
  const Floats x = random_floats(2 * columns, 2, 0.01, 3);  // small deviation, so that eps shows
  const Floats y = run(*layer, parameters, x);
  for (std::size_t r = 0; r < 2; ++r) {
    double mean = 0;
    double variance = 0;
    for (std::size_t c = 0; c < columns; ++c) mean += static_cast<double>(x[r * columns + c]) / columns;
    for (std::size_t c = 0; c < columns; ++c) {
      variance += std::pow(static_cast<double>(x[r * columns + c]) - mean, 2) / columns;
    }
    for (std::size_t c = 0; c < columns; ++c) {
      const double xhat = (static_cast<double>(x[r * columns + c]) - mean) / std::sqrt(variance + 1e-5);
      EXPECT_NEAR(y[r * columns + c], xhat * parameters[c] + parameters[columns + c], 5e-4);
    }
  }
}

TEST(Gelu, IsTheTanhApproximation) {
  Floats x;
  for (float value = -12; value <= 12; value += 0.01f) x.push_back(value);
  x.insert(x.end(), {-1e4f, 1e4f, -1e15f, 1e15f, 0.0f});
  const auto layer = make_layer({"gelu", "g", 1, x.size(), {}});
  Floats stash;
  const Floats y = run(*layer, {}, x, &stash);
  Floats dx(x.size());
  layer->backward_input({{}, stash, Floats(x.size(), 1.0f), dx, {}});
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double v = x[i];
    const double t = std::tanh(std::sqrt(2 / std::acos(-1.0)) * (v + 0.044715 * v * v * v));
    EXPECT_NEAR(y[i], 0.5 * v * (1 + t), 1e-6 * (1 + std::abs(v))) << v;
    EXPECT_TRUE(std::isfinite(dx[i])) << v;
    if (std::abs(v) > 20) {
      EXPECT_NEAR(dx[i], v > 0 ? 1 : 0, 1e-30) << v;
    }
  }
}

TEST(Swiglu, FarFromZeroIsAGateThatIsOpenOrShut) {
  for (const float gate : {-1e38f, -1e5f, -100.0f, -89.0f, 40.0f, 1e5f}) {
    const auto layer = make_layer({"swiglu", "s", 1, 2, {}});
    Floats stash;
    const Floats y = run(*layer, {}, {gate, 0.5f}, &stash);
    Floats dx(2);
    layer->backward_input({{}, stash, Floats{1.0f}, dx, {}});
    EXPECT_NEAR(y[0], gate > 0 ? 0.5f * gate : 0, 1e-30) << gate;
    EXPECT_NEAR(dx[0], gate > 0 ? 0.5f : 0, 1e-30) << gate;
    EXPECT_NEAR(dx[1], gate > 0 ? gate : 0, 1e-30) << gate;
  }
}

// Scores of rotated queries and keys depend on the distance of their positions only.
TEST(Rotary, KeepsProductsOfPositionsAtTheSameDistance) {
  const std::size_t context = 3000;
  const LayerSpec spec = {
      "rotary", "r", context, 8, {{"heads", 1}, {"size", 8}, {"context", double{context}}, {"theta", 1e4}}};
  const auto layer = make_layer(spec);
  const Floats q = random_floats(8, 1);
  const Floats k = random_floats(8, 2);
  const auto at_every_position = [&](const Floats& head) {
    Floats rows;
    for (std::size_t r = 0; r < context; ++r) rows.insert(rows.end(), head.begin(), head.end());
    return run(*layer, {}, rows);
  };
  const Floats queries = at_every_position(q);
  const Floats keys = at_every_position(k);
  const auto score = [&](std::size_t query, std::size_t key) {
    return dot(std::span(queries).subspan(8 * query, 8), std::span(keys).subspan(8 * key, 8));
  };
  EXPECT_EQ(Floats(queries.begin(), queries.begin() + 8), q) << "position 0 stays";
  for (const std::size_t distance : {0, 1, 7}) {
    EXPECT_NEAR(score(2990 + distance, 2990), score(distance, 0), 1e-5) << distance;
  }
  EXPECT_GT(std::abs(score(1, 0) - score(0, 0)), 1e-2);
}

/// The definition of attention, computed in double.
std::vector<double> plain_attention(const Floats& qkv, std::size_t rows, std::size_t hidden,
                                    std::size_t heads, std::size_t context) {
  const std::size_t size = hidden / heads;
  std::vector<double> output(rows * hidden, 0);
  const auto at = [&](std::size_t row, std::size_t which, std::size_t head, std::size_t c) {
    return static_cast<double>(qkv[row * 3 * hidden + which * hidden + head * size + c]);
  };
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t head = 0; head < heads; ++head) {
      std::vector<double> p;
      double sum = 0;
      const std::size_t start = row / context * context;
      for (std::size_t key = start; key <= row; ++key) {
        double score = 0;
        for (std::size_t c = 0; c < size; ++c) score += at(row, 0, head, c) * at(key, 1, head, c);
        p.push_back(std::exp(score / std::sqrt(static_cast<double>(size))));
        sum += p.back();
      }
      for (std::size_t key = start; key <= row; ++key) {
        for (std::size_t c = 0; c < size; ++c) {
          output[row * hidden + head * size + c] += p[key - start] / sum * at(key, 2, head, c);
        }
      }
    }
  }
  return output;
}

TEST(Attention, MatchesTheDefinition) {
  const std::size_t context = 70;
  const auto layer = make_layer({"attention", "a", 2 * context, 36, {{"heads", 3}, {"context", context}}});
  const Floats x = random_floats(2 * context * 36, 1);
  const Floats y = run(*layer, {}, x);
  const std::vector<double> expected = plain_attention(x, 2 * context, 12, 3, context);
  for (std::size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(y[i], expected[i], 1e-5) << i;
}

TEST(Attention, SeesNeitherLaterTokensNorOtherSequences) {
  const std::size_t context = 70;
  const auto layer = make_layer({"attention", "a", 2 * context, 12, {{"heads", 2}, {"context", context}}});
  Floats x = random_floats(2 * context * 12, 1);
  const Floats y = run(*layer, {}, x);
  const std::size_t changed = 40;
  for (std::size_t c = 0; c < 12; ++c) x[changed * 12 + c] += 1;
  const Floats z = run(*layer, {}, x);
  for (std::size_t i = 0; i < changed * 4; ++i) ASSERT_EQ(y[i], z[i]);
  for (std::size_t i = context * 4; i < y.size(); ++i) ASSERT_EQ(y[i], z[i]);
  EXPECT_NE(y[changed * 4], z[changed * 4]);
}

TEST(Attention, StashAndScratchGrowLinearlyWithTheContext) {
  const auto make = [](double context) {
    return make_layer(
        {"attention", "a", static_cast<std::size_t>(context), 48, {{"heads", 4}, {"context", context}}});
  };
  EXPECT_EQ(make(1024)->stash_size(), 4 * make(256)->stash_size());
  EXPECT_EQ(make(1024)->scratch_size(), 4 * make(256)->scratch_size());
}

TEST(Attention, LargeScoresDoNotOverflow) {
  const auto layer = make_layer({"attention", "a", 8, 12, {{"heads", 1}, {"context", 8}}});
  Floats stash;
  for (const float y : run(*layer, {}, random_floats(96, 1, 300), &stash)) EXPECT_TRUE(std::isfinite(y));
  Floats dx(96, not_a_number);
  Floats scratch(layer->scratch_size(), not_a_number);
  layer->backward_input({{}, stash, random_floats(32, 2), dx, scratch});
  for (const float value : dx) EXPECT_TRUE(std::isfinite(value));
}

class Losses : public ::testing::TestWithParam<std::string> {};

TEST_P(Losses, GradientMatchesFiniteDifferences) {
  const std::size_t rows = 3;
  const std::size_t columns = 11;
  const auto loss = make_loss(GetParam(), rows, columns);
  Floats target = random_floats(rows * loss->target_columns(), 1);
  if (loss->target_columns() == 1) target = {4, 0, 10};
  const Floats x = random_floats(rows * columns, 2);
  Guarded stash(loss->stash_size());
  const float value = loss->forward(x, target, stash);
  stash.expect_whole("stash");
  EXPECT_TRUE(std::isfinite(value));
  for (const float scale : {1.0f, 0.25f}) {
    Guarded gradient(x.size());
    loss->backward_input(stash, scale, gradient);
    gradient.expect_whole("input gradient");
    const auto f = [&](const Floats& at) {
      Floats kept(loss->stash_size());
      return static_cast<double>(scale) * static_cast<double>(loss->forward(at, target, kept));
    };
    expect_gradient(f, x, gradient.span(), 0, x.size(), "input", 1e-3, 2e-2);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Losses, ::testing::Values("cross_entropy", "mse"),
                         [](const auto& test) { return test.param; });

TEST(CrossEntropy, MatchesTheFormula) {
  const std::size_t columns = 19;
  const auto loss = make_loss("cross_entropy", 2, columns);
  Floats stash(loss->stash_size());
  Floats x = random_floats(2 * columns, 1, 3);
  x[0] = 200;  // exp overflows without the shift
  const Floats target = {7, 18};
  double expected = 0;
  for (std::size_t r = 0; r < 2; ++r) {
    double sum = 0;
    for (std::size_t c = 0; c < columns; ++c) sum += std::exp(static_cast<double>(x[r * columns + c]));
    expected += (std::log(sum) - x[r * columns + static_cast<std::size_t>(target[r])]) / 2;
  }
  EXPECT_NEAR(loss->forward(x, target, stash), expected, 1e-5 * expected);
}

TEST(MeanSquaredError, IsTheMeanOverRowsAndColumns) {
  const auto loss = make_loss("mse", 2, 2);
  Floats stash(loss->stash_size());
  EXPECT_FLOAT_EQ(loss->forward(Floats{1, 2, 3, 4}, Floats{0, 0, 3, 2}, stash), (1 + 4 + 0 + 4) / 4.0f);
  Floats gradient(4);
  loss->backward_input(stash, 1, gradient);
  EXPECT_EQ(gradient, (Floats{0.5f, 1, 0, 1}));
}

}  // namespace
}  // namespace starpipe::model
