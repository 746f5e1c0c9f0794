// SPDX-License-Identifier: Apache-2.0
// Losses compared with their formulas and with finite differences.
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
