// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace starpipe::plan::detail {

/// Where a run lies in an SVG image: time to pixels, rows to pixels.
struct RunFrame {
  double left = 0;        ///< x of the run's begin
  double top = 0;         ///< y of the first row
  double origin = 0;      ///< time at which the run begins
  double scale = 1;       ///< pixels per unit of time
  double row_height = 0;  ///< pixels
  double row_pitch = 0;   ///< from the top of a row to the top of the next

  [[nodiscard]] double x(double time) const { return left + (time - origin) * scale; }
  [[nodiscard]] double y(std::size_t row) const { return top + static_cast<double>(row) * row_pitch; }
  [[nodiscard]] double middle(std::size_t row) const { return y(row) + row_height / 2; }
};

}  // namespace starpipe::plan::detail
