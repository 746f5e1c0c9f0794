// SPDX-License-Identifier: Apache-2.0
#include "base/number_input.hpp"

#include <fmt/format.h>

namespace starpipe {

std::string range_problem(std::string_view number, std::uint64_t least, std::uint64_t most) {
  std::errc error{};
  const std::uint64_t value = parse_number<std::uint64_t>(number, error).value_or(0);
  const bool fits = error == std::errc();
  if (number.starts_with('-') || (fits && value < least)) {
    return fmt::format("must be at least {}, got {}", least, number);
  }
  if (!fits || value > most) return fmt::format("must be at most {}, got {}", most, number);
  return "";
}

}  // namespace starpipe
