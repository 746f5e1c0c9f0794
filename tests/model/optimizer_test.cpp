// SPDX-License-Identifier: Apache-2.0
#include "starpipe/model/optimizer.hpp"

#include <array>
#include <cmath>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "model/gradients.hpp"

namespace starpipe::model {
namespace {

using namespace testing;

/// One update of numbers that all decay.
void update(const OptimizerConfig& config, int number, const Floats& gradient, Floats& parameters,
            std::span<float> state, float scale = 1) {
  const std::array all = {DecayRange{.first = 0, .count = parameters.size(), .decays = true}};
  optimizer_step(config, {number, config.learning_rate, scale, all}, gradient, parameters, state);
}

OptimizerConfig momentum_config() {
  OptimizerConfig config;
  config.kind = "sgd";
  config.learning_rate = 0.5;
  config.weight_decay = 0.1;
  config.momentum = 0.9;
  return config;
}

TEST(AdamW, FirstStepByHand) {
  OptimizerConfig config;
  config.learning_rate = 0.1;
  config.weight_decay = 0.5;
  Floats w = {2, -1};
  Floats state(optimizer_state_size(config, 2), 0.0f);
  ASSERT_EQ(state.size(), 4u);
  update(config, 1, Floats{3, -0.25f}, w, state);
  // Decay: 2 * (1 - 0.05) = 1.9 and -0.95. Corrected moments: g and g^2, so the step is 0.1 * sign(g).
  EXPECT_NEAR(w[0], 1.8, 1e-6);
  EXPECT_NEAR(w[1], -0.85, 1e-6);
  EXPECT_NEAR(state[0], 0.3, 1e-7);    // (1 - beta1) g
  EXPECT_NEAR(state[2], 0.009, 1e-8);  // (1 - beta2) g^2
  EXPECT_NEAR(state[3], 0.0000625, 1e-9);
}

TEST(AdamW, SecondStepByHand) {
  OptimizerConfig config;
  config.learning_rate = 1;
  config.weight_decay = 0;
  config.beta1 = 0.5;
  config.beta2 = 0.75;
  Floats w = {0};
  Floats state(2, 0.0f);
  update(config, 1, Floats{1}, w, state);
  EXPECT_NEAR(w[0], -1, 1e-6);
  update(config, 2, Floats{3}, w, state);
  // m = 0.25 + 1.5 = 1.75, corrected / 0.75 = 7/3; v = 0.1875 + 2.25 = 2.4375, corrected / 0.4375 = 39/7.
  EXPECT_NEAR(w[0], -1 - 7.0 / 3 / std::sqrt(39.0 / 7), 1e-6);
}

TEST(AdamW, IsThePublishedFormula) {
  OptimizerConfig config;
  config.learning_rate = 0.02;
  config.weight_decay = 0.1;
  config.beta1 = 0.8;
  config.beta2 = 0.95;
  config.epsilon = 1e-3;  // large enough to show where it is added
  const std::size_t n = 101;
  Floats w = random_floats(n, 1);
  Floats state(optimizer_state_size(config, n), 0.0f);
  std::vector<double> theta(w.begin(), w.end());
  std::vector<double> m(n, 0);
  std::vector<double> v(n, 0);
  for (int t = 1; t <= 20; ++t) {
    const Floats g = random_floats(n, 100 + static_cast<std::uint64_t>(t), 0.01);
    update(config, t, g, w, state);
    for (std::size_t i = 0; i < n; ++i) {  // arXiv 1711.05101, algorithm 2, with eta = learning rate
      m[i] = 0.8 * m[i] + 0.2 * g[i];
      v[i] = 0.95 * v[i] + 0.05 * g[i] * g[i];
      const double mhat = m[i] / (1 - std::pow(0.8, t));
      const double vhat = v[i] / (1 - std::pow(0.95, t));
      theta[i] -= 0.02 * (mhat / (std::sqrt(vhat) + 1e-3) + 0.1 * theta[i]);
    }
  }
  for (std::size_t i = 0; i < n; ++i) EXPECT_NEAR(w[i], theta[i], 2e-6) << i;
}

TEST(Sgd, WithoutMomentumByHand) {
  OptimizerConfig config;
  config.kind = "sgd";
  config.learning_rate = 0.5;
  config.weight_decay = 0.1;
  EXPECT_EQ(optimizer_state_size(config, 7), 0u);
  Floats w = {2};
  update(config, 1, Floats{3}, w, {});
  EXPECT_NEAR(w[0], 2 - 0.5 * (3 + 0.2), 1e-6);
}

TEST(Sgd, WithMomentumByHand) {
  const OptimizerConfig config = momentum_config();
  EXPECT_EQ(optimizer_state_size(config, 7), 7u);
  Floats w = {2};
  Floats state(1, 0.0f);
  update(config, 1, Floats{3}, w, state);  // v = 3.2, w = 0.4
  EXPECT_NEAR(w[0], 0.4, 1e-6);
  update(config, 2, Floats{1}, w, state);  // v = 2.88 + 1.04, w = 0.4 - 1.96
  EXPECT_NEAR(w[0], -1.56, 1e-6);
}

// Clipping multiplies the gradient before anything else happens to it.
TEST(Optimizer, AScaledUpdateIsAnUpdateByTheScaledGradient) {
  const std::size_t n = 77;
  OptimizerConfig sgd = momentum_config();
  sgd.momentum = 0;
  for (const OptimizerConfig& config : {OptimizerConfig(), momentum_config(), sgd}) {
    SCOPED_TRACE(config.kind);
    Floats w = random_floats(n, 1);
    Floats scaled_w = w;
    Floats state(optimizer_state_size(config, n), 0.0f);
    Floats scaled_state = state;
    for (int t = 1; t <= 3; ++t) {
      const Floats g = random_floats(n, 10 + static_cast<std::uint64_t>(t));
      Floats quarter = g;
      for (float& value : quarter) value *= 0.25f;
      update(config, t, quarter, w, state);
      update(config, t, g, scaled_w, scaled_state, 0.25f);
    }
    EXPECT_EQ(scaled_w, w);
    EXPECT_EQ(scaled_state, state);
  }
}

TEST(Optimizer, MatricesDecayAndVectorsDoNot) {
  const std::vector<Parameter> parameters = {
      {"ln.weight", {3}}, {"ln.bias", {3}}, {"a.weight", {2, 4}}, {"b.weight", {1, 2}}, {"b.bias", {2}}};
  OptimizerConfig config;
  EXPECT_EQ(decay_ranges(config, parameters), (std::vector<DecayRange>{{0, 18, true}}));
  config.decay = "matrices";
  const auto ranges = decay_ranges(config, parameters);
  EXPECT_EQ(ranges, (std::vector<DecayRange>{{0, 6, false}, {6, 10, true}, {16, 2, false}}));
  EXPECT_TRUE(decay_ranges(config, {}).empty());

  OptimizerConfig sgd = momentum_config();
  sgd.momentum = 0;
  config.weight_decay = 0.5;
  for (OptimizerConfig with : {config, momentum_config(), sgd}) {
    SCOPED_TRACE(with.kind);
    OptimizerConfig without = with;
    without.weight_decay = 0;
    const Floats start = random_floats(18, 1);
    const auto trained = [&](const OptimizerConfig& by, std::span<const DecayRange> in) {
      Floats w = start;
      Floats state(optimizer_state_size(by, w.size()), 0.0f);
      for (int t = 1; t <= 3; ++t)
        optimizer_step(by, {t, 0.1, 1, in}, random_floats(18, 5 + static_cast<std::uint64_t>(t)), w, state);
      w.insert(w.end(), state.begin(), state.end());
      return w;
    };
    const DecayRange all[] = {{0, 18, true}};
    const Floats mixed = trained(with, ranges);
    const Floats decayed = trained(with, all);
    const Floats plain = trained(without, all);
    // The numbers of the state follow the parameters' numbers, once or twice.
    for (std::size_t i = 0; i < mixed.size(); ++i) {
      const bool decays = i % 18 >= 6 && i % 18 < 16;
      EXPECT_EQ(mixed[i], decays ? decayed[i] : plain[i]) << i;
    }
    EXPECT_NE(decayed, plain);
  }
}

}  // namespace
}  // namespace starpipe::model
