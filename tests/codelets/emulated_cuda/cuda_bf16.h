// SPDX-License-Identifier: Apache-2.0
// The part of CUDA's bf16 that we use; see cuda_runtime.h.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

// NOLINTBEGIN(readability-identifier-naming,bugprone-reserved-identifier)

/// Rounds to nearest, ties to even, by the definition, so that it can test our own code for this.
class __nv_bfloat16 {
 public:
  __nv_bfloat16() = default;
  explicit __nv_bfloat16(float value) {
    if (std::isfinite(value) && value != 0) {
      int exponent = 0;
      std::frexp(value, &exponent);         // value / 2^exponent is in [1/2, 1); bf16 keeps 8 bits
      exponent = std::max(exponent, -125);  // smaller numbers are subnormal
      value = std::ldexp(std::nearbyint(std::ldexp(value, 8 - exponent)), exponent - 8);
    }
    bits_ = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16u);
  }
  explicit operator float() const { return std::bit_cast<float>(std::uint32_t{bits_} << 16u); }

 private:
  std::uint16_t bits_;
};

// NOLINTEND(readability-identifier-naming,bugprone-reserved-identifier)
