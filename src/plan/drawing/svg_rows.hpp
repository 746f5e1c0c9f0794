// SPDX-License-Identifier: Apache-2.0
#pragma once

// Idle time in SVG images, hatched by cause.

#include <span>
#include <string>
#include <string_view>

#include "plan/drawing/run_frame.hpp"
#include "starpipe/plan/drawing/shown_unit.hpp"
#include "plan/explain/idle_causes.hpp"

namespace starpipe::plan::detail {

/// The <pattern> elements of all causes, for <defs>.
std::string idle_patterns();

/// The SVG attribute that fills an area with the hatching of a cause.
std::string idle_fill(IdleCause cause);

/// What the legend says of a cause.
std::string_view idle_meaning(IdleCause cause);

/// Appends the idle parts of a run to `svg`. With `titles` each is a <rect> whose title says what the worker
/// waited for; without, there is a <path> for each cause, without parts too narrow to see.
void draw_idle(std::span<const IdlePart> parts, const Schedule& schedule, const RunFrame& frame,
               const ShownUnit& unit, bool titles, std::string& svg);

}  // namespace starpipe::plan::detail
