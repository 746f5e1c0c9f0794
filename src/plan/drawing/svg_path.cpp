// SPDX-License-Identifier: Apache-2.0
#include "plan/drawing/svg_path.hpp"

#include <algorithm>
#include <iterator>
#include <vector>

#include <fmt/format.h>

#include "plan/drawing/svg_text.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::plan::detail {
namespace {

// A job of the path, or in dense images several in one row.
struct Stretch {
  std::size_t row = 0;
  double left = 0;   // pixels
  double right = 0;  // pixels
};

std::vector<Stretch> stretches_of(std::span<const PathPart> path, const Schedule& as_run,
                                  const RunFrame& frame, bool merged) {
  std::vector<Stretch> stretches;
  for (const PathPart& part : path) {
    if (part.kind != PathPart::Kind::compute) continue;
    const Stretch stretch = {index(as_run.compute(part.job)), frame.x(part.start), frame.x(part.end)};
    if (merged && !stretches.empty() && stretches.back().row == stretch.row) {
      stretches.back().right = stretch.right;
    } else {
      stretches.push_back(stretch);
    }
  }
  return stretches;
}

std::string outlines(const std::vector<Stretch>& stretches, const RunFrame& frame) {
  std::string path;
  auto out = std::back_inserter(path);
  const Stretch* before = nullptr;
  for (const Stretch& stretch : stretches) {
    const double top = frame.y(stretch.row);
    if (before != nullptr && (before->row != stretch.row || stretch.left - before->right > 1)) {
      fmt::format_to(out, "M{} {}L{} {}", px(before->right - 1), px(frame.middle(before->row)),
                     px(stretch.left), px(frame.middle(stretch.row)));
    }
    // The outline lies within the cell, whose seam is on its right.
    const double width = std::max(0.0, stretch.right - stretch.left - 3);
    fmt::format_to(out, "M{} {}h{}v{}h-{}z", px(stretch.left + 1), px(top + 1), px(width),
                   px(frame.row_height - 2), px(width));
    before = &stretch;
  }
  return path;
}

std::string thin_line(const std::vector<Stretch>& stretches, const RunFrame& frame) {
  std::string path;
  for (const Stretch& stretch : stretches) {
    fmt::format_to(std::back_inserter(path), "{}{} {}H{}", path.empty() ? "M" : "L", px(stretch.left),
                   px(frame.middle(stretch.row)), px(stretch.right));
  }
  return path;
}

}  // namespace

std::string critical_stroke() { return fmt::format("fill=\"none\" stroke=\"{}\" stroke-width=\"2\"", ink); }

bool draw_critical_path(std::span<const PathPart> path, const Schedule& as_run, const RunFrame& frame,
                        bool dense, std::string& svg) {
  constexpr double narrowest = 8;  // pixels: the mean length of a stretch that can be followed
  const std::vector<Stretch> stretches = stretches_of(path, as_run, frame, dense);
  if (stretches.empty()) return false;
  const double length = stretches.back().right - stretches.front().left;
  if (dense && length < narrowest * static_cast<double>(stretches.size())) return false;
  fmt::format_to(std::back_inserter(svg),
                 "<path class=\"critical\" d=\"{}\" {} stroke-linejoin=\"round\"/>\n",
                 dense ? thin_line(stretches, frame) : outlines(stretches, frame), critical_stroke());
  return true;
}

}  // namespace starpipe::plan::detail
