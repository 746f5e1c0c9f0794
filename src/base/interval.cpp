// SPDX-License-Identifier: Apache-2.0
#include "starpipe/base/interval.hpp"

#include <cmath>

#include <fmt/format.h>

namespace starpipe {

bool Interval::contains(double value) const {
  if (!std::isfinite(value)) return false;
  if (zero && value == 0) return true;
  return (above ? value > min : value >= min) && (below ? value < max : value <= max);
}

std::string Interval::text() const {
  const std::string low =
      std::isfinite(min) ? fmt::format("{} {}", above ? "greater than" : "at least", min) : "";
  const std::string high =
      std::isfinite(max) ? fmt::format("{} {}", below ? "less than" : "at most", max) : "";
  const std::string range = low.empty() || high.empty() ? low + high : low + " and " + high;
  return zero ? "0, or " + range : range;
}

}  // namespace starpipe
