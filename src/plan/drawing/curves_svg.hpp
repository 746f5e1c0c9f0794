// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

namespace starpipe::plan {

/// A value measured between two steps, such as the loss of an evaluation.
struct CurvePoint {
  double step;  ///< number of steps before it
  double value;
};

/// A curve with one value a step, and points between steps.
struct Curve {
  std::string name;                     ///< "loss"
  std::vector<double> values;           ///< by step; infinity and NaN leave a gap
  std::string points_name = {};         ///< "validation"; empty: there are none
  std::vector<CurvePoint> points = {};  ///< ascending; those that are not finite are left out
};

/// Draws the curves below each other, on one axis of steps that count from 1, as one SVG image without
/// scripts or outside resources. Each curve is one <path> of class "curve", its points one of class "points".
/// The axis begins at step 0 where a curve has a point before the first step. Where more steps than pixels
/// are to be drawn, each pixel shows the smallest and the largest of its steps' values. `width`: pixels, at
/// least 400.
std::string curves_svg(std::span<const Curve> curves, int width = 900);

}  // namespace starpipe::plan
