// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

#include "plan/drawing/run_frame.hpp"
#include "plan/explain/critical_path.hpp"

namespace starpipe::plan::detail {

/// The SVG attributes of the critical path's outlines.
std::string critical_stroke();

/// Appends the critical path to `svg`: an outline around each of its jobs, and a line through each wait, to
/// the row of the next job. In a `dense` image it is a thin line through the middle of the rows, and nothing
/// when it changes rows so often that nobody could follow it. Returns whether it was drawn.
bool draw_critical_path(std::span<const PathPart> path, const Schedule& as_run, const RunFrame& frame,
                        bool dense, std::string& svg);

}  // namespace starpipe::plan::detail
