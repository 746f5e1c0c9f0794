// SPDX-License-Identifier: Apache-2.0
#include "model/random.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

namespace starpipe::model {
namespace {

std::vector<double> part(std::uint64_t key, std::size_t first, std::size_t count) {
  std::vector<double> numbers;
  NormalArray(key).for_each(first, count, [&](std::size_t i, double number) {
    EXPECT_EQ(i, first + numbers.size());
    numbers.push_back(number);
  });
  return numbers;
}

TEST(NormalArray, EachPartHasTheNumbersOfTheWhole) {
  const std::vector<double> whole = part(3, 0, 11);
  for (std::size_t first = 0; first <= whole.size(); ++first) {
    for (std::size_t count = 0; first + count <= whole.size(); ++count) {
      const auto begin = whole.begin() + static_cast<std::ptrdiff_t>(first);
      EXPECT_EQ(part(3, first, count),
                std::vector<double>(begin, begin + static_cast<std::ptrdiff_t>(count)));
    }
  }
  EXPECT_NE(part(4, 0, 11), whole);
}

// The mean of n such numbers is within 4 / sqrt(n) of 0, but in 1 of 15,000 cases; the other moments alike.
TEST(NormalArray, HasTheMomentsOfTheNormalDistribution) {
  constexpr std::size_t n = 400'000;
  double sum = 0;
  double squares = 0;
  double fourths = 0;
  double neighbours = 0;
  std::size_t beyond_two = 0;
  const std::vector<double> numbers = part(1, 0, n);
  for (std::size_t i = 0; i < n; ++i) {
    const double square = numbers[i] * numbers[i];
    sum += numbers[i];
    squares += square;
    fourths += square * square;
    neighbours += numbers[i] * numbers[(i + 1) % n];
    beyond_two += std::abs(numbers[i]) > 2 ? 1U : 0U;
  }
  EXPECT_NEAR(sum / n, 0, 4 / std::sqrt(n));
  EXPECT_NEAR(squares / n, 1, 4 * std::sqrt(2.0 / n));
  EXPECT_NEAR(fourths / n, 3, 4 * std::sqrt(96.0 / n));
  EXPECT_NEAR(neighbours / n, 0, 4 / std::sqrt(n));
  EXPECT_NEAR(static_cast<double>(beyond_two) / n, 0.0455, 4 * std::sqrt(0.0455 / n));
}

}  // namespace
}  // namespace starpipe::model
