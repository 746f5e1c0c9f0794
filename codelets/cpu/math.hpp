// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include <cblas.h>

namespace starpipe::model::cpu {

/// To the beginning of the stash, unless it is there already.
inline void keep_input(std::span<const float> input, std::span<float> stash) noexcept {
  if (input.data() != stash.data()) std::ranges::copy(input, stash.begin());
}

// Sums and maxima run in eight lanes: a compiler must not reorder a plain float loop, so it would not
// vectorise it. The order is fixed by the code, so results do not depend on the machine's vectors.
inline constexpr std::size_t kLanes = 8;

/// Largest of `count` > 0 values.
inline float max_of(const float* values, std::size_t count) noexcept {
  std::array<float, kLanes> lane;
  lane.fill(values[0]);
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::size_t k = 0; k < kLanes; ++k) lane[k] = lane[k] < values[i + k] ? values[i + k] : lane[k];
  }
  for (; i < count; ++i) lane[0] = lane[0] < values[i] ? values[i] : lane[0];
  float result = lane[0];
  for (const float value : lane) result = result < value ? value : result;
  return result;
}

/// Sum over i < count of term(i).
template <class Term>
inline float sum_of(std::size_t count, Term term) noexcept {
  std::array<float, kLanes> lane{};
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::size_t k = 0; k < kLanes; ++k) lane[k] += term(i + k);
  }
  for (; i < count; ++i) lane[0] += term(i);
  return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

/// `limit` where `past`, else x. By bit masks: GCC would turn a choice between x and a constant into a
/// branch (it computes what follows from the constant in advance), and loops around it not into vectors.
inline float limit_to(float x, float limit, bool past) noexcept {
  const std::uint32_t mask = 0u - static_cast<std::uint32_t>(past);
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  return std::bit_cast<float>(bits ^ ((bits ^ std::bit_cast<std::uint32_t>(limit)) & mask));
}

/// e^x to 2 units in the last place (Cephes' expf without branches, so that loops vectorise).
/// Saturates below -87 and above 88; NaN stays NaN.
inline float exp_of(float x) noexcept {
  x = limit_to(x, -87.0f, x < -87.0f);
  x = limit_to(x, 88.0f, x > 88.0f);
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
  const float shifted = x * 1.44269504088896341f + kRound;
  const float n = shifted - kRound;
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

/// A token id as an index below `count`. An id out of range is a bug elsewhere; passes cannot throw, and
/// it must not become a wild access.
inline std::size_t index_of(float id, std::size_t count) noexcept {
  if (!(id >= 0)) return 0;
  return id < static_cast<float>(count) ? static_cast<std::size_t>(id) : count - 1;
}

/// C = alpha * op(A) op(B) + beta * C, row-major; C is m x n, the inner dimension k.
struct Matrix {
  const float* data;
  std::size_t stride;  ///< floats from row to row, as stored
  bool transposed = false;
};
inline void multiply(std::size_t m, std::size_t n, std::size_t k, float alpha, Matrix a, Matrix b, float beta,
                     float* c, std::size_t c_stride) noexcept {
  const auto i = [](std::size_t value) { return static_cast<int>(value); };
  cblas_sgemm(CblasRowMajor, a.transposed ? CblasTrans : CblasNoTrans,
              b.transposed ? CblasTrans : CblasNoTrans, i(m), i(n), i(k), alpha, a.data, i(a.stride), b.data,
              i(b.stride), beta, c, i(c_stride));
}

}  // namespace starpipe::model::cpu
