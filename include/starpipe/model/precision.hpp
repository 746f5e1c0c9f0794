// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "starpipe/base/ceil_div.hpp"
#include "starpipe/model/memory_view.hpp"

namespace starpipe::model {

/// How passes store numbers and multiply matrices.
enum class Precision : std::uint8_t {
  fp32,
  tf32,  ///< stores fp32; GPUs multiply matrices with 10 bits of each operand's mantissa
  bf16,  ///< stores the upper half of an fp32; sums, statistics, ids, targets and losses are fp32
};

/// The precisions' words, in the order of the enum.
inline constexpr std::array<std::string_view, 3> precision_words = {"fp32", "tf32", "bf16"};
std::string_view to_string(Precision precision);

constexpr std::size_t element_bytes(Precision precision) { return precision == Precision::bf16 ? 2 : 4; }

/// Words of 4 bytes of an array of `elements` numbers in the precision, followed by an array of `floats`
/// floats (fp32 in any precision). In bf16 both arrays are padded to 16 bytes, so that the next array is
/// aligned.
constexpr std::size_t words(Precision precision, std::size_t elements, std::size_t floats = 0) {
  if (precision != Precision::bf16) return elements + floats;
  return ceil_div(elements, 8) * 4 + ceil_div(floats, 4) * 4;
}

/// Rounds floats to the nearest bf16, ties to even; NaN stays NaN. `to` has words(bf16, from.size()) words
/// and does not overlap `from`.
void round_to_bf16(std::span<const float> from, Memory to) noexcept;
/// Converts the first to.size() bf16 of `from` to floats.
void widen_bf16(ConstMemory from, std::span<float> to) noexcept;

}  // namespace starpipe::model
