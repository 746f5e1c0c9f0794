// SPDX-License-Identifier: Apache-2.0
#include "starpipe/base/interval.hpp"

#include <cmath>

#include <fmt/format.h>

namespace starpipe {

bool Interval::contains(double value) const {
  if (!std::isfinite(value)) return false;
  if (zero && value == 0) return true;
  return (above ? value > least : value >= least) && (below ? value < most : value <= most);
}

std::string Interval::text() const {
  const std::string low =
      std::isfinite(least) ? fmt::format("{} {}", above ? "greater than" : "at least", least) : "";
  const std::string high =
      std::isfinite(most) ? fmt::format("{} {}", below ? "less than" : "at most", most) : "";
  const std::string range = low.empty() || high.empty() ? low + high : low + " and " + high;
  return zero ? "0, or " + range : range;
}

}  // namespace starpipe
