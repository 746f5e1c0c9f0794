// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/floats.hpp"

namespace starpipe::model::testing {

inline constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

inline Floats random_floats(std::size_t count, std::uint64_t seed, double deviation = 1, double mean = 0) {
  std::mt19937_64 bits(seed);
  std::normal_distribution<double> normal(mean, deviation);
  Floats values(count);
  for (float& value : values) value = static_cast<float>(normal(bits));
  return values;
}

inline double dot(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

/// A span of NaN that a pass must fill, between two guards that it must leave alone.
class Guarded {
 public:
  explicit Guarded(std::size_t size, float fill = not_a_number)
      : size_(size), values_(size + 2 * guard_size, guard_value) {
    std::fill_n(values_.begin() + guard_size, size, fill);
  }
  std::span<float> span() { return std::span(values_).subspan(guard_size, size_); }
  operator std::span<float>() { return span(); }
  operator std::span<const float>() { return span(); }

  /// Expects that the whole span was written, and nothing beyond it.
  void expect_whole(const std::string& what) {
    expect_guards(what);
    for (std::size_t i = 0; i < size_; ++i) {
      ASSERT_TRUE(std::isfinite(span()[i])) << what << "[" << i << "] was not written";
    }
  }
  void expect_guards(const std::string& what) const {
    for (std::size_t i = 0; i < guard_size; ++i) {
      ASSERT_EQ(values_[i], guard_value) << what << ": written before its start";
      ASSERT_EQ(values_[guard_size + size_ + i], guard_value) << what << ": written past its end";
    }
  }

 private:
  static constexpr std::ptrdiff_t guard_size = 16;
  static constexpr float guard_value = 12345.0f;
  std::size_t size_;
  Floats values_;
};

/// Compares `gradient` with central differences (of fourth order) of f at x, in random directions within the
/// coordinates [first, first + count). The tolerance is relative to the gradient's norm: the difference in a
/// random direction has the norm of the gradient's error as its standard deviation.
template <class Function>
void expect_gradient(Function f, Floats x, std::span<const float> gradient, std::size_t first,
                     std::size_t count, const std::string& what, double tolerance = 1e-3,
                     double step = 1e-2) {
  const std::span<const float> part = gradient.subspan(first, count);
  const double norm = std::sqrt(dot(part, part));
  ASSERT_TRUE(std::isfinite(norm)) << what;
  ASSERT_GT(norm, 0) << what << ": zero, so the comparison would show nothing";
  const Floats start = x;
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    const Floats direction = random_floats(count, 1000 + seed);
    const auto at = [&](double distance) {
      for (std::size_t i = 0; i < count; ++i) {
        x[first + i] = static_cast<float>(static_cast<double>(start[first + i]) +
                                          distance * static_cast<double>(direction[i]));
      }
      return f(x);
    };
    const double slope = (8 * (at(step) - at(-step)) - (at(2 * step) - at(-2 * step))) / (12 * step);
    EXPECT_NEAR(dot(part, direction), slope, tolerance * norm) << what << ", direction " << seed;
  }
}

}  // namespace starpipe::model::testing
