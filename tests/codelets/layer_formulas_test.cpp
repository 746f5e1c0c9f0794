// SPDX-License-Identifier: Apache-2.0
// Layers compared with their formulas, by hand.
#include <cmath>

#include <gtest/gtest.h>

#include "codelets/cpu/math.hpp"
#include "codelets/exact.hpp"
#include "model/gradients.hpp"
#include "starpipe/base/registration.hpp"
#include "starpipe/model/layer.hpp"

namespace starpipe::model {
namespace {

using namespace testing;

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

}  // namespace
}  // namespace starpipe::model
