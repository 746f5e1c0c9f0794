// SPDX-License-Identifier: Apache-2.0
#include "plan/drawing/column.hpp"

#include <string_view>

namespace starpipe::plan::detail {

void Column::add(std::int64_t value) {
  constexpr std::string_view characters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const auto magnitude =
      value < 0 ? 0 - static_cast<std::uint64_t>(value) : static_cast<std::uint64_t>(value);
  std::uint64_t rest = magnitude << 1 | (value < 0 ? 1U : 0U);
  do {
    const std::uint64_t digit = rest & 31;
    rest >>= 5;
    text_ += characters[rest > 0 ? digit | 32 : digit];
  } while (rest > 0);
}

void Column::add_difference(std::int64_t value) {
  add(value - last_);
  last_ = value;
}

}  // namespace starpipe::plan::detail
