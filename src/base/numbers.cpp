// SPDX-License-Identifier: Apache-2.0
#include "base/numbers.hpp"

#include <cmath>

#include <fmt/format.h>

namespace starpipe {

std::string bytes_text(std::uint64_t bytes) {
  if (bytes < 10'000) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes);
  std::string_view unit;
  for (const std::string_view next : {"KiB", "MiB", "GiB", "TiB"}) {
    value /= 1024;
    unit = next;
    if (value < 1000) break;
  }
  return fmt::format("{:.1f} {}", value, unit);
}

std::pair<std::string, std::string> bytes_texts(std::uint64_t first, std::uint64_t second) {
  std::pair texts(bytes_text(first), bytes_text(second));
  if (texts.first == texts.second && first != second)
    texts = {fmt::format("{} bytes", first), fmt::format("{} bytes", second)};
  return texts;
}

std::string number_text(double value) {
  const double size = std::abs(value);
  if (std::floor(value) == value && size < 1e9) return fmt::format("{:.0f}", value);
  if (size >= 1e5 && size < 1e9) return fmt::format("{:.0f}", value);
  return fmt::format("{:.5g}", value);
}

std::string percent_text(double ratio) {
  // Rounding errors must not show as "-0.0 %".
  const double percent = ratio * 100;
  return fmt::format("{:.1f} %", percent < 0 && percent > -0.05 ? 0 : percent);
}

std::string difference_text(double ratio) {
  constexpr double max = 100;  // beyond, the number says no more than this
  if (std::isnan(ratio)) ratio = 0;
  return ratio > max ? "> +10000 %" : fmt::format("{:+.1f} %", ratio * 100);
}

std::string loss_text(double value) {
  if (std::isnan(value)) return "nan";
  const double size = std::abs(value);
  const bool everyday = size == 0 || (size >= 0.01 && size < 1e6) || !std::isfinite(value);
  return everyday ? fmt::format("{:.4f}", value) : fmt::format("{:.4e}", value);
}

std::string counted_text(std::int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string range_problem(std::string_view number, std::uint64_t min, std::uint64_t max) {
  std::errc error{};
  const std::uint64_t value = parse_number<std::uint64_t>(number, error).value_or(0);
  const bool fits = error == std::errc();
  if (number.starts_with('-') || (fits && value < min)) {
    return fmt::format("must be at least {}, got {}", min, number);
  }
  if (!fits || value > max) return fmt::format("must be at most {}, got {}", max, number);
  return "";
}

}  // namespace starpipe
