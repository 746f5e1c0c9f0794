// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace starpipe {

/// More than any cost.
inline constexpr double infinity = std::numeric_limits<double>::infinity();

/// Returns a number of bytes for people: "512 B", "1.5 MiB".
std::string bytes_text(std::uint64_t bytes);

/// Returns both numbers of bytes for people; as "12345 bytes" where rounding would hide that they differ.
std::pair<std::string, std::string> bytes_texts(std::uint64_t first, std::uint64_t second);

/// Returns at most five significant digits, and no exponent for everyday magnitudes: "33", "0.2727",
/// "1204.5".
std::string number_text(double value);

/// Returns a share for people: 0.273 is "27.3 %".
std::string percent_text(double ratio);

/// Returns a relative difference for people: 0.05 is "+5.0 %".
std::string difference_text(double ratio);

/// Returns a loss: four decimals for everyday magnitudes, five significant digits with an exponent for
/// others: "2.3026", "1.0000e+34".
std::string loss_text(double value);

/// Returns a number of things: "1 rank", "2 ranks". `noun`: of one thing; its plural ends in s.
std::string counted_text(std::int64_t count, std::string_view noun);

/// Reads the whole text as a decimal number, or with a floating type as "inf" or "nan" too. Returns nullopt
/// for any other text. `error`: std::errc::result_out_of_range when the number does not fit into its type;
/// the result is then 0.
template <class Number>
std::optional<Number> parse_number(std::string_view text, std::errc& error) {
  Number value{};
  const char* const end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  error = result.ec;
  if (result.ec == std::errc::invalid_argument || result.ptr != end) return std::nullopt;
  return value;
}

/// Returns why a whole number is not from `min` to `max`: "must be at least 1, got 0"; empty if it is.
/// `number`: its decimal digits, with a minus sign before them if it is negative. It may be of any size.
std::string range_problem(std::string_view number, std::uint64_t min, std::uint64_t max);

}  // namespace starpipe
