// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

namespace starpipe::plan {

/// One value a step.
struct Curve {
  std::string name;            ///< "loss"
  std::vector<double> values;  ///< by step; infinity and NaN leave a gap
};

/// Draws the curves below each other, on one axis of steps that count from 1, as one SVG image without
/// scripts or outside resources. Each curve is one <path> of class "curve". Where more steps than pixels are
/// to be drawn, each pixel shows the smallest and the largest of its steps' values. `width`: pixels, at least
/// 400.
std::string curves_svg(std::span<const Curve> curves, int width = 900);

}  // namespace starpipe::plan
