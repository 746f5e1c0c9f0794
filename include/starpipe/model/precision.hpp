// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "starpipe/model/memory_view.hpp"

namespace starpipe::model {

/// How the passes of layers store numbers and multiply matrices.
enum class Precision : std::uint8_t {
  fp32,
  tf32,  ///< stores fp32; GPUs multiply matrices with 10 bits of each factor's mantissa
  bf16,  ///< stores the upper half of an fp32; sums, statistics, ids, targets and losses are fp32
};

std::string_view to_string(Precision precision);

constexpr std::size_t element_bytes(Precision precision) { return precision == Precision::bf16 ? 2 : 4; }

/// Words of 4 bytes of an array of `elements` numbers in the precision, and an array of `floats`, fp32 in any
/// precision, behind it. With bf16 each is padded to 16 bytes, so that what follows is aligned.
constexpr std::size_t words(Precision precision, std::size_t elements, std::size_t floats = 0) {
  if (precision != Precision::bf16) return elements + floats;
  return (elements + 7) / 8 * 4 + (floats + 3) / 4 * 4;
}

/// To the nearest bf16, ties to even; NaN stays NaN. `to`: words(bf16, from.size()) words, not of `from`.
void round_to_bf16(std::span<const float> from, Memory to) noexcept;
/// The first to.size() bf16 of `from`.
void widen_bf16(ConstMemory from, std::span<float> to) noexcept;

}  // namespace starpipe::model
