// SPDX-License-Identifier: Apache-2.0
#include "starpipe/model/memory_view.hpp"

#include <bit>
#include <cstring>

#include "model/full_width.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::model {

std::string_view to_string(Precision precision) { return precision_words[index(precision)]; }

void round_to_bf16(ConstFloatView from, Memory to) noexcept {
  auto* out = to.as<std::byte>();
  at_full_width([&] {
    for (std::size_t i = 0; i < from.size(); ++i) {
      const auto bits = std::bit_cast<std::uint32_t>(from[i]);
      const std::uint32_t nearest = (bits + 0x7fffu + (bits >> 16u & 1u)) >> 16u;
      const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
      const auto half = static_cast<std::uint16_t>(is_nan ? bits >> 16u | 0x40u : nearest);
      std::memcpy(out + 2 * i, &half, sizeof(half));
    }
  });
}

void widen_bf16(ConstMemory from, FloatView to) noexcept {
  const auto* in = from.as<std::byte>();
  at_full_width([&] {
    for (std::size_t i = 0; i < to.size(); ++i) {
      std::uint16_t half = 0;
      std::memcpy(&half, in + 2 * i, sizeof(half));
      to[i] = std::bit_cast<float>(static_cast<std::uint32_t>(half) << 16u);
    }
  });
}

}  // namespace starpipe::model
