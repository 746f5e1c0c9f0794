// SPDX-License-Identifier: Apache-2.0
// Numbers in bf16, for loops that are written once for floats and for bf16.
#pragma once

#include <bit>
#include <cstdint>

namespace starpipe::model {

/// The upper half of a float. Reads as the float; a float that is assigned is rounded to the nearest bf16,
/// ties to even, and NaN stays NaN. It lies in memory that other code uses as words: so it may alias them.
/// For the compiler it may alias everything else, too. So a loop that assigns to bf16 is vectorised only if
/// its bounds and pointers are local constants.
struct [[gnu::may_alias]] Bf16 {
  std::uint16_t bits;

  operator float() const noexcept { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16u); }
  Bf16& operator=(float value) noexcept {
    const auto all = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t nearest = (all + 0x7fffu + (all >> 16u & 1u)) >> 16u;
    const bool is_nan = (all & 0x7fffffffu) > 0x7f800000u;
    bits = static_cast<std::uint16_t>(is_nan ? all >> 16u | 0x40u : nearest);
    return *this;
  }
};

}  // namespace starpipe::model
