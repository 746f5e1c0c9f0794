// SPDX-License-Identifier: Apache-2.0
#include "plan/drawing/axis.hpp"

#include <array>
#include <cmath>

namespace starpipe::plan::detail {

double tick_step(double least) {
  const double power = std::pow(10, std::floor(std::log10(least)));
  for (const double factor : std::array{1.0, 2.0, 5.0}) {
    if (factor * power >= least) return factor * power;
  }
  return 10 * power;
}

}  // namespace starpipe::plan::detail
