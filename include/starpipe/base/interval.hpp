// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>
#include <string>

namespace starpipe {

/// The finite numbers from `min` to `max`, and 0 where `zero` says so.
struct Interval {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool above = false;  ///< `min` itself is outside
  bool below = false;  ///< `max` itself is outside
  bool zero = false;   ///< 0 is inside too, wherever the interval begins

  [[nodiscard]] bool contains(double value) const;
  /// Returns a text for people: "at least 0 and less than 1", "0, or at least 2"; empty if all numbers are
  /// inside.
  [[nodiscard]] std::string text() const;

  friend bool operator==(const Interval&, const Interval&) = default;
};

inline constexpr Interval positive = {.min = 0, .above = true};
inline constexpr Interval not_negative = {.min = 0};
inline constexpr Interval fraction = {.min = 0, .max = 1, .below = true};

/// Times and sizes that users may give. Numbers below 1e-99, other than 0, are too small to divide by. A sum
/// of up to nine amounts is within `finite_amounts`.
inline constexpr Interval amounts = {.min = 1e-99, .max = 1e99, .zero = true};

/// Times and sizes that the functions of `plan` accept; they throw InputError for others. Sums and squares of
/// accepted numbers stay finite.
inline constexpr Interval finite_amounts = {.min = 0, .max = 1e100, .below = true};

}  // namespace starpipe
