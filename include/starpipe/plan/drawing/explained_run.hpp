// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "starpipe/plan/drawing/timeline_svg.hpp"
#include "starpipe/plan/explain/recorded_step.hpp"

namespace starpipe::plan {

/// A step to draw with the causes of its idle time and its critical path. `step` must outlive the result.
SvgRun explained_run(const std::string& title, const RecordedStep& step);

}  // namespace starpipe::plan
