// SPDX-License-Identifier: Apache-2.0
#include "starpipe/base/random.hpp"

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "model/random.hpp"

namespace starpipe::model {
namespace {

std::vector<float> part(std::uint64_t key, std::size_t first, std::size_t count,
                        NormalNumbers code = normal_numbers) {
  std::vector<float> numbers(count);
  code(key, first, 0, 1, numbers);
  return numbers;
}

TEST(NormalNumbers, EachPartHasTheNumbersOfTheWhole) {
  const std::vector<float> whole = part(3, 0, 1100);  // blocks have 256
  for (const std::size_t first : {0, 1, 2, 255, 256, 257, 511, 700}) {
    for (const std::size_t count : {0, 1, 2, 3, 255, 256, 257, 400}) {
      const auto begin = whole.begin() + static_cast<std::ptrdiff_t>(first);
      EXPECT_EQ(part(3, first, count), std::vector<float>(begin, begin + static_cast<std::ptrdiff_t>(count)))
          << first << ' ' << count;
    }
  }
  EXPECT_NE(part(4, 0, 1100), whole);
}

// The value is the same for all compilers, processors and C libraries. Another one changes all training runs.
TEST(NormalNumbers, AllCodesMakeTheSameBits) {
  for (const NormalNumbers code : normal_numbers_codes()) {
    std::uint64_t hash = hash_start;
    for (const float number : part(42, 0, 20'001, code))
      hash = hash_of(std::uint64_t{std::bit_cast<std::uint32_t>(number)}, hash);
    EXPECT_EQ(hash, 0xfe948c18dc1a6b54U);
  }
}

TEST(NormalNumbers, AreBoxAndMullersOfSplitMix64) {
  const auto uniform = [](std::uint64_t i) {
    std::uint64_t bits = 7 + (i + 1) * 0x9E3779B97F4A7C15U;
    bits = (bits ^ bits >> 30U) * 0xBF58476D1CE4E5B9U;
    bits = (bits ^ bits >> 27U) * 0x94D049BB133111EBU;
    return static_cast<double>((bits ^ bits >> 31U) >> 11U) * 0x1p-53;
  };
  constexpr std::size_t first = 1'000'000;
  std::vector<float> numbers(50'000);
  normal_numbers(7, first, 3, 2, numbers);
  for (std::size_t i = 0; i < numbers.size(); i += 2) {
    const double radius = std::sqrt(-2 * std::log(1 - uniform(first + i)));
    const double angle = 2 * std::acos(-1.0) * uniform(first + i + 1);
    EXPECT_FLOAT_EQ(numbers[i], static_cast<float>(3 + 2 * radius * std::cos(angle)));
    EXPECT_FLOAT_EQ(numbers[i + 1], static_cast<float>(3 + 2 * radius * std::sin(angle)));
  }
}

// The mean of n such numbers is within 4 / sqrt(n) of 0, but in 1 of 15,000 cases; the other moments alike.
TEST(NormalNumbers, HaveTheMomentsOfTheNormalDistribution) {
  constexpr std::size_t n = 400'000;
  double sum = 0;
  double squares = 0;
  double fourths = 0;
  double neighbours = 0;
  std::size_t beyond_two = 0;
  const std::vector<float> floats = part(1, 0, n);
  const std::vector<double> numbers(floats.begin(), floats.end());
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
