// SPDX-License-Identifier: Apache-2.0
#include "plan/drawing/curves_svg.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include <fmt/format.h>

#include "base/numbers.hpp"
#include "plan/drawing/svg_text.hpp"

namespace starpipe::plan {
namespace {

using detail::put_text;
using detail::px;

constexpr double curve_left = 76;   // room for the values' axis
constexpr double curve_right = 24;  // below the width
constexpr double curve_height = 180;
constexpr double curve_gap = 44;  // room for the next curve's name

/// The values' axis: from the first tick at or below the least value to the one at or above the largest.
struct ValueAxis {
  explicit ValueAxis(const Curve& curve) {
    double min = std::numeric_limits<double>::infinity();
    double max = -min;
    const auto hold = [&](double value) {
      if (!std::isfinite(value)) return;
      min = std::min(min, value);
      max = std::max(max, value);
    };
    for (const double value : curve.values) hold(value);
    for (const CurvePoint& point : curve.points) hold(point.value);
    if (min > max) min = max = 0;  // no finite value
    if (min == max) hold(0);          // a constant is drawn beside 0, so that it can be read
    const double range = max > min ? max - min : 1;
    step = detail::tick_step(range / 4);
    begin = std::floor(min / step) * step;
    end = std::max(std::ceil(max / step) * step, begin + step);
  }
  [[nodiscard]] double y(double value, double top) const {
    return top + curve_height * (end - value) / (end - begin);
  }
  double begin = 0;
  double end = 1;
  double step = 1;
};

/// The path of a curve: a point a step, or of each pixel the least and the largest value.
std::string curve_path(const std::vector<double>& values, const ValueAxis& axis, double top, double left,
                       double scale) {
  std::string path;
  bool joined = false;  // to the point before
  const auto put = [&](double x, double value) {
    fmt::format_to(std::back_inserter(path), "{}{} {}", joined ? "L" : "M", px(x), px(axis.y(value, top)));
    joined = true;
  };
  const std::size_t at_once = std::max<std::size_t>(1, static_cast<std::size_t>(1 / std::max(scale, 1e-12)));
  for (std::size_t first = 0; first < values.size(); first += at_once) {
    const std::size_t end = std::min(values.size(), first + at_once);
    double min = std::numeric_limits<double>::infinity();
    double max = -min;
    for (std::size_t step = first; step < end; ++step) {
      if (!std::isfinite(values[step])) continue;
      min = std::min(min, values[step]);
      max = std::max(max, values[step]);
    }
    if (min > max) {
      joined = false;
      continue;
    }
    const double x = left + static_cast<double>(first) * scale;
    put(x, min);
    if (max > min) put(x, max);
    // A lone step between gaps would not show.
    if (end == values.size() || !std::isfinite(values[end])) fmt::format_to(std::back_inserter(path), "h.5");
  }
  return path;
}

/// The path of a curve's points: a line through all of them, with a small square at each.
std::string points_path(const std::vector<CurvePoint>& points, const ValueAxis& axis, double top, double zero,
                        double scale) {
  std::string line;
  std::string squares;
  for (const CurvePoint& point : points) {
    if (!std::isfinite(point.value)) continue;
    const double x = zero + point.step * scale;
    const double y = axis.y(point.value, top);
    fmt::format_to(std::back_inserter(line), "{}{} {}", line.empty() ? "M" : "L", px(x), px(y));
    fmt::format_to(std::back_inserter(squares), "M{} {}h4v4h-4z", px(x - 2), px(y - 2));
  }
  return line + squares;
}

}  // namespace

std::string curves_svg(std::span<const Curve> curves, int width) {
  width = std::max(width, 400);
  std::size_t steps = 1;
  double first_step = 1;
  for (const Curve& curve : curves) {
    steps = std::max(steps, curve.values.size());
    for (const CurvePoint& point : curve.points) first_step = std::min(first_step, point.step);
  }
  const double right = width - curve_right;
  const double range = static_cast<double>(steps) - first_step;
  const double scale = range > 0 ? (right - curve_left) / range : 0;
  const double zero = curve_left - first_step * scale;  // where step 0 is
  std::string body;
  const auto put = [&body]<class... Args>(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(body), format, std::forward<Args>(args)...);
  };
  double top = 32;
  for (std::size_t c = 0; c < curves.size(); ++c, top += curve_height + curve_gap) {
    const ValueAxis axis(curves[c]);
    put_text(curve_left, top - 10, 14, detail::ink, curves[c].name, body, " font-weight=\"bold\"");
    const int ticks = static_cast<int>(std::lround((axis.end - axis.begin) / axis.step));
    for (int tick = 0; tick <= ticks; ++tick) {
      const double value = axis.begin + tick * axis.step;
      const double y = axis.y(value, top);
      put("<path d=\"M{} {}H{}\" stroke=\"#e3e6e9\" fill=\"none\"/>\n", px(curve_left), px(y), px(right));
      // A sum of steps may miss 0 by a rounding error.
      put_text(curve_left - 8, y + 4, 11, detail::faint_ink,
               number_text(std::abs(value) < axis.step / 2 ? 0 : value), body, " text-anchor=\"end\"");
    }
    put("<path class=\"curve\" d=\"{}\" stroke=\"{}\" stroke-width=\"1.5\" stroke-linejoin=\"round\" "
        "fill=\"none\"/>\n",
        curve_path(curves[c].values, axis, top, zero + scale, scale),
        detail::palette[c % detail::palette.size()].dark);
    if (curves[c].points_name.empty()) continue;
    // Beside the name of the curve, in a colour of its own.
    const auto& colour = detail::palette[(c + curves.size()) % detail::palette.size()].dark;
    put_text(right, top - 10, 12, colour, curves[c].points_name, body, " text-anchor=\"end\"");
    put("<path class=\"points\" d=\"{}\" stroke=\"{}\" stroke-width=\"1.5\" stroke-linejoin=\"round\" "
        "fill=\"none\"/>\n",
        points_path(curves[c].points, axis, top, zero, scale), colour);
  }
  const double bottom = top - curve_gap;
  const double tick = std::max(1.0, detail::tick_step(static_cast<double>(steps) / 8));
  for (double step = 1; step <= static_cast<double>(steps);
       step = step == 1 && tick > 1 ? tick : step + tick) {
    const double x = zero + step * scale;
    put("<path d=\"M{} {}v5\" stroke=\"{}\"/>\n", px(x), px(bottom), detail::faint_ink);
    put_text(x, bottom + 18, 11, detail::faint_ink, number_text(step), body, " text-anchor=\"middle\"");
  }
  put_text(curve_left - 8, bottom + 18, 11, detail::faint_ink, "step", body, " text-anchor=\"end\"");
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
             "font-family=\"Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif\">\n"
             "<rect width=\"{0}\" height=\"{1}\" fill=\"#ffffff\"/>\n",
             width, px(bottom + 30)) +
         body + "</svg>\n";
}

}  // namespace starpipe::plan
