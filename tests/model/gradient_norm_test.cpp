// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>

#include "model/gradients.hpp"
#include "starpipe/model/optimizer.hpp"

namespace starpipe::model {
namespace {

using namespace testing;

constexpr float infinity = std::numeric_limits<float>::infinity();

/// The order of the additions, as gradient_norm.hpp states it, written out.
double by_definition(const Floats& values) {
  const auto tree = [](std::vector<double> lanes) {
    for (std::size_t distance = 16; distance > 0; distance /= 2) {
      for (std::size_t lane = 0; lane < distance; ++lane) lanes[lane] += lanes[lane + distance];
    }
    return lanes[0];
  };
  std::vector<double> chunks(32, 0);
  for (std::size_t first = 0; first < values.size(); first += 4096) {
    std::vector<double> lanes(32, 0);
    for (std::size_t i = first; i < std::min(first + 4096, values.size()); ++i)
      lanes[(i - first) % 32] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
    chunks[first / 4096 % 32] += tree(lanes);
  }
  return tree(chunks);
}

// The bits depend on the values alone: not on where they lie.
TEST(GradientNorm, AddsInTheStatedOrder) {
  for (const std::size_t count :
       {0U, 1U, 31U, 32U, 33U, 4095U, 4096U, 4097U, 3U * 4096U, 40U * 4096U + 17U}) {
    const Floats values = random_floats(count, count);
    const double expected = by_definition(values);
    EXPECT_EQ(sum_of_squares(values), expected) << count;
    for (std::size_t shift = 1; shift <= 5; ++shift) {
      Floats shifted(shift, infinity);
      shifted.insert(shifted.end(), values.begin(), values.end());
      EXPECT_EQ(sum_of_squares(std::span(shifted).subspan(shift)), expected) << count << ", " << shift;
    }
    EXPECT_NEAR(expected, dot(values, values), 1e-12 * expected);
  }
}

TEST(GradientNorm, IsTheRootOfTheSums) {
  EXPECT_DOUBLE_EQ(gradient_norm(std::vector<double>{9, 16, 144}), 13);
  EXPECT_EQ(gradient_norm({}), 0);
}

// Squares of the largest floats overflow in fp32, and squares of the smallest vanish.
TEST(GradientNorm, IsFiniteForEveryFiniteGradient) {
  const Floats large(1000, std::numeric_limits<float>::max());
  EXPECT_NEAR(gradient_norm(std::vector{sum_of_squares(large)}) / (0x1.fffffep127 * std::sqrt(1000.0)), 1,
              1e-12);
  const Floats small(4, std::numeric_limits<float>::denorm_min());
  EXPECT_DOUBLE_EQ(gradient_norm(std::vector{sum_of_squares(small)}), 2 * 0x1p-149);
  for (const float bad : {infinity, -infinity, not_a_number}) {
    for (const std::size_t at : {0U, 4096U, 4999U}) {
      Floats values(5000, 1);
      values[at] = bad;
      EXPECT_FALSE(std::isfinite(gradient_norm(std::vector{1.0, sum_of_squares(values), 2.0}))) << bad;
    }
  }
}

TEST(GradientNorm, ScalesAsPyTorchDoes) {
  EXPECT_EQ(clip_scale({}, 1e30), 1);
  EXPECT_EQ(clip_scale(1.0, 0), 1);
  EXPECT_EQ(clip_scale(1.0, 0.5), 1);
  EXPECT_EQ(clip_scale(2.0, 2 - 1e-6), 1) << "as torch: clip / (norm + 1e-6)";
  EXPECT_EQ(clip_scale(2.0, 2), static_cast<float>(2 / (2 + 1e-6)));
  EXPECT_EQ(clip_scale(0.5, 4), static_cast<float>(0.5 / (4 + 1e-6)));
  EXPECT_EQ(clip_scale(1.0, static_cast<double>(infinity)), 0);
  EXPECT_TRUE(std::isnan(clip_scale(1.0, std::nan(""))));
}

// torch computes in fp32: the norm of each tensor, the norm of these norms, the factor, the product.
TEST(GradientNorm, ClipsAsPyTorchTo1e6) {
  for (const double clip : {0.1, 1.0, 50.0, 1000.0}) {
    Floats norms;
    std::vector<double> sums;
    std::vector<Floats> gradients;
    for (const std::size_t size : {1U, 768U, 10'000U, 65'536U}) {
      gradients.push_back(random_floats(size, size, 0.3));
      sums.push_back(sum_of_squares(gradients.back()));
      norms.push_back(static_cast<float>(std::sqrt(dot(gradients.back(), gradients.back()))));
    }
    float squares = 0;
    for (const float norm : norms) squares += norm * norm;
    const float factor = std::min(static_cast<float>(clip) / (std::sqrt(squares) + 1e-6f), 1.0f);
    const float scale = clip_scale(clip, gradient_norm(sums));
    EXPECT_EQ(factor < 1, clip < 80);
    for (const Floats& gradient : gradients) {
      for (const float g : gradient) EXPECT_NEAR(scale * g, factor * g, 1e-6 * std::abs(factor * g));
    }
  }
}

}  // namespace
}  // namespace starpipe::model
