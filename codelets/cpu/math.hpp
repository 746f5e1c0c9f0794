// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "model/arithmetic.hpp"
#include "model/bf16.hpp"
#include "starpipe/model/layer.hpp"

namespace starpipe::model::cpu {

/// Copies the input to the beginning of the stash, unless the input lies there already.
inline void keep_input(ConstFloatView input, FloatView stash) noexcept {
  if (input.data() != stash.data()) std::ranges::copy(input, stash.begin());
}
inline void keep_input(ConstMemory input, Memory stash) noexcept {
  if (input.data() != stash.data()) std::memcpy(stash.data(), input.data(), input.size() * sizeof(float));
}

// Sums and maxima have eight partial results, called lanes: element i belongs to lane i % 8, the rest after
// the last whole eight to lane 0. A compiler must not reorder the additions of a plain loop over floats, so
// it cannot vectorise that loop. It can vectorise this one. The code fixes the order, so results do not
// depend on the width of the machine's vectors.
inline constexpr std::size_t lanes = 8;

/// Returns the largest of `count` > 0 values.
inline float max_of(const float* values, std::size_t count) noexcept {
  std::array<float, lanes> lane;
  lane.fill(values[0]);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    for (std::size_t k = 0; k < lanes; ++k) lane[k] = lane[k] < values[i + k] ? values[i + k] : lane[k];
  }
  for (; i < count; ++i) lane[0] = lane[0] < values[i] ? values[i] : lane[0];
  float result = lane[0];
  for (const float value : lane) result = result < value ? value : result;
  return result;
}

/// Returns the sum of term(i) over i in [0, count).
template <class Term>
inline float sum_of(std::size_t count, Term term) noexcept {
  std::array<float, lanes> lane{};
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    for (std::size_t k = 0; k < lanes; ++k) lane[k] += term(i + k);
  }
  for (; i < count; ++i) lane[0] += term(i);
  return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

/// Returns `past ? limit : x`, by bit masks. From the plain expression GCC makes a branch when `limit` is a
/// constant, and then it does not vectorise the loop.
inline float limit_to(float x, float limit, bool past) noexcept {
  const std::uint32_t mask = 0u - static_cast<std::uint32_t>(past);
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  return std::bit_cast<float>(bits ^ ((bits ^ std::bit_cast<std::uint32_t>(limit)) & mask));
}

/// Returns e^x to 2 units in the last place (Cephes' expf without branches, so that loops vectorise). x below
/// -87 counts as -87, x above 88 as 88; NaN stays NaN.
inline float exp_of(float x) noexcept {
  x = limit_to(x, -87.0f, x < -87.0f);
  x = limit_to(x, 88.0f, x > 88.0f);
  constexpr float rounder = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
  const float shifted = x * 1.44269504088896341f + rounder;
  const float n = shifted - rounder;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // x - n ln 2, in two parts
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  // The low bits of `shifted` hold n; as an exponent they make 2^n.
  const std::uint32_t power = (std::bit_cast<std::uint32_t>(shifted) + 127u) << 23u;
  return p * std::bit_cast<float>(power);
}

/// Returns 1 / (1 + e^-x).
inline float logistic(float x) noexcept { return 1.0f / (1.0f + exp_of(-x)); }

}  // namespace starpipe::model::cpu
