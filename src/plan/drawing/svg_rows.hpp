// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "plan/explain/critical_path.hpp"
#include "plan/explain/idle_causes.hpp"
#include "starpipe/plan/drawing/schedule_text.hpp"

namespace starpipe::plan {

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

// Idle time is hatched by its cause.

/// Returns the <pattern> elements of all causes, for <defs>.
std::string idle_patterns();

/// Returns the SVG attribute that fills an area with the hatching of a cause.
std::string idle_fill(IdleCause cause);

/// Returns the legend's text for a cause.
std::string_view idle_meaning(IdleCause cause);

/// Appends the idle parts of a run to `svg`, each as a <rect> whose title says what the worker waited for.
void draw_idle(std::span<const IdlePart> parts, const Schedule& schedule, const RunFrame& frame,
               const ShownUnit& unit, std::string& svg);

/// Returns the SVG attributes of the critical path's outlines.
std::string critical_stroke();

/// Appends the critical path to `svg`: an outline around each of its jobs, and a line through each wait, to
/// the row of the next job. Returns false for a path without jobs.
bool draw_critical_path(std::span<const PathPart> path, const Schedule& as_run, const RunFrame& frame,
                        std::string& svg);

}  // namespace starpipe::plan
