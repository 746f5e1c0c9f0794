// SPDX-License-Identifier: Apache-2.0
// In place of codelets/cuda/kernels/tensor_cores.cuh: the same functions on a CPU, written from the layouts
// in the PTX ISA's "Matrix Fragments for mma.m16n8k16 with floating point type" and "ldmatrix".
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "codelets/cuda/kernels/element.hpp"
#include "codelets/cuda/kernels/launch.cuh"

namespace starpipe::model::cuda::tensor_cores {

struct Matrices {
  unsigned of[4];
};

using FragmentA = Matrices;

struct Accumulator {
  float at[4] = {};
};

/// The bf16 in the lower (half 0) or upper (half 1) half of a register.
inline float half_of(unsigned both, unsigned half) {
  return std::bit_cast<float>(half == 0 ? both << 16u : both & 0xffff0000u);
}

/// PTX's elements a0 ... a7 are in `a`, its b0 and b1 in `b_upper`, b2 and b3 in `b_lower`.
inline void multiply_add(Accumulator& sum, const FragmentA& a, unsigned b_upper, unsigned b_lower) {
  const WarpWords& lanes = exchange({a.of[0], a.of[1], a.of[2], a.of[3], b_upper, b_lower});
  const unsigned group = lane() / 4;
  const unsigned in_group = lane() % 4;
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned row = group + i / 2 * 8;
    const unsigned column = in_group * 2 + i % 2;
    for (unsigned k = 0; k < 16; ++k) {
      const Words& a_words = lanes[row % 8 * 4 + k % 8 / 2];  // of the lane that has A's [row][k]
      const Words& b_words = lanes[column * 4 + k % 8 / 2];   // of the lane that has B's [k][column]
      sum.at[i] += half_of(a_words[row / 8 + k / 8 * 2], k % 2) * half_of(b_words[4 + k / 8], k % 2);
    }
  }
}

/// The four 8x8 matrices of an ldmatrix, by the addresses of their rows, which the lanes give.
class Rows {
 public:
  explicit Rows(const Bf16* row) : addresses_(exchange(halves(reinterpret_cast<std::uintptr_t>(row)))) {}

  [[nodiscard]] unsigned element(unsigned matrix, unsigned row, unsigned column) const {
    const Words& address = addresses_[matrix * 8 + row];
    const auto* const from = reinterpret_cast<const Bf16*>(address[0] | std::uintptr_t{address[1]} << 32u);
    return std::bit_cast<std::uint16_t>(from[column]);
  }

 private:
  static Words halves(std::uintptr_t address) {
    require(address % 16 == 0, "ldmatrix: a row does not begin at a multiple of 16 bytes");
    return {static_cast<std::uint32_t>(address), static_cast<std::uint32_t>(address >> 32u)};
  }
  const WarpWords& addresses_;
};

inline Matrices load_matrices(const Bf16* row) {
  const Rows rows(row);
  const unsigned r = lane() / 4;
  const unsigned c = lane() % 4 * 2;
  Matrices to;
  for (unsigned m = 0; m < 4; ++m) to.of[m] = rows.element(m, r, c) | rows.element(m, r, c + 1) << 16u;
  return to;
}

inline Matrices load_matrices_transposed(const Bf16* row) {
  const Rows rows(row);
  const unsigned r = lane() % 4 * 2;
  const unsigned c = lane() / 4;
  Matrices to;
  for (unsigned m = 0; m < 4; ++m) to.of[m] = rows.element(m, r, c) | rows.element(m, r + 1, c) << 16u;
  return to;
}

inline unsigned pack(float low, float high) {
  const auto bits = [](float x) { return std::uint32_t{std::bit_cast<std::uint16_t>(Bf16(x))}; };
  return bits(low) | bits(high) << 16u;
}

inline void store_pair(Bf16* to, unsigned both) {
  require(reinterpret_cast<std::uintptr_t>(to) % sizeof both == 0,
          "store_pair: the pair does not begin at a multiple of 4 bytes");
  std::memcpy(static_cast<void*>(to), &both, sizeof both);
}

inline float exp2_approximate(float x) { return std::exp2(x); }

template <int Bytes>
void copy_async(void* to, const void* from, bool inside) {
  static_assert(Bytes == 4 || Bytes == 16);
  begin_copy(to, from, Bytes, inside);
}

inline void wait_for_copies() { end_copies(); }

}  // namespace starpipe::model::cuda::tensor_cores
