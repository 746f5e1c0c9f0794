// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

namespace starpipe {

/// Reads the whole text as a decimal number, or with a floating type as "inf" or "nan" too. Nothing when it
/// is none of these. `error`: std::errc::result_out_of_range when the number does not fit into its type; the
/// result is then 0.
template <class Number>
std::optional<Number> parse_number(std::string_view text, std::errc& error) {
  Number value{};
  const char* const end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  error = result.ec;
  if (result.ec == std::errc::invalid_argument || result.ptr != end) return std::nullopt;
  return value;
}

/// Why a whole number is not from `least` to `most`: "must be at least 1, got 0"; empty when it is. `number`:
/// its decimal digits, with a minus sign before them if it is negative. It may be of any size.
std::string range_problem(std::string_view number, std::uint64_t least, std::uint64_t most);

}  // namespace starpipe
