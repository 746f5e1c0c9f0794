// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "plan/explain/critical_path.hpp"
#include "plan/explain/idle_causes.hpp"
#include "plan/explain/recorded_step.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/timeline.hpp"

namespace starpipe::plan {

/// A run to draw. Refers to the schedule and timeline, which must outlive the call.
struct SvgRun {
  std::string title;
  const Schedule* schedule = nullptr;
  const Timeline* timeline = nullptr;
  std::vector<IdlePart> idle = {};  ///< of `timeline`; without, all idle time looks alike
  std::vector<PathPart> path = {};  ///< the critical path of `timeline`, if it is to be drawn
};

struct SvgOptions {
  /// Unit of the timelines' times, for the axis. Short times in "s" are shown in ms or µs.
  std::string unit;
  int width = 1200;    ///< pixels; at least 400
  bool memory = true;  ///< draw the stashes that each worker holds, below the run
};

/// Draws runs as one SVG image, without scripts or outside resources. Runs are stacked in the order given,
/// with one time scale for all. Each has a row per worker, with time to the right, and below the rows the
/// stashes that each worker holds, on one scale.
///
/// The hue of a job tells its micro-batch, the shade its pass; idle time is hatched, by its cause where this
/// is known. The jobs of a worker's second, third, ... stage have one, two, ... lines at the foot. The jobs
/// of the critical path are outlined, and lines join them. Each job is one <rect> inside a group of class
/// "jobs". Each idle part is one inside a group of class "idle", and its title says what the worker waited
/// for. Images of more than some thousand jobs stay below a few MB: labels are left out, jobs and idle parts
/// become paths, and jobs narrower than half a pixel merge. The critical path is then a thin line, or left
/// out where it could not be followed.
std::string timeline_svg(std::span<const SvgRun> runs, const SvgOptions& options = {});

/// A step to draw with the causes of its idle time and its critical path. `step` must outlive the result.
SvgRun explained_run(const std::string& title, const RecordedStep& step);

}  // namespace starpipe::plan
