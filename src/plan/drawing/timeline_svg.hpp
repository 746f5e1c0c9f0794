// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "plan/explain/critical_path.hpp"
#include "plan/explain/idle_causes.hpp"
#include "plan/explain/recorded_step.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/timeline.hpp"

namespace starpipe::plan {

/// A run to draw or to trace. Refers to the schedule and timeline, which must outlive the call.
struct DrawnRun {
  std::string title;
  const Schedule* schedule = nullptr;
  const Timeline* timeline = nullptr;
  std::vector<IdlePart> idle = {};  ///< of `timeline`; without, all idle time looks alike
  std::vector<PathPart> path = {};  ///< the critical path of `timeline`, if it is to be drawn
};

struct SvgOptions {
  /// Unit of the timelines' times, for the axis. Short times in "s" are shown in ms or µs.
  std::string unit;
  bool memory = true;  ///< draw the stashes that each worker holds, below the run
};

/// Throws InputError if runs of so many jobs in all are too large for an SVG image. The message names the
/// limit and --html.
void require_drawable(std::size_t jobs);

/// Draws runs as one SVG image, without scripts or outside resources. Runs are stacked in the order given,
/// with one time scale for all. Each has a row per worker, with time to the right, and below the rows the
/// stashes that each worker holds, on one scale.
///
/// The hue of a job tells its micro-batch, the shade its pass; idle time is hatched, by its cause where this
/// is known. The jobs of a worker's second, third, ... stage have one, two, ... lines at the foot. The jobs
/// of the critical path are outlined, and lines join them. Each job is one <rect> inside a group of class
/// "jobs". Each idle part is one inside a group of class "idle", and its title says what the worker waited
/// for. Throws InputError as `require_drawable` does.
std::string timeline_svg(std::span<const DrawnRun> runs, const SvgOptions& options = {});

/// Returns a step to draw with the causes of its idle time and its critical path. `step` must outlive the
/// result.
DrawnRun explained_run(const std::string& title, const RecordedStep& step);

}  // namespace starpipe::plan
