// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/timeline.hpp"

namespace starpipe::plan {

/// A run to draw. Refers to the schedule and timeline, which must outlive the call.
struct SvgRun {
  std::string title;
  const Schedule* schedule = nullptr;
  const Timeline* timeline = nullptr;
};

struct SvgOptions {
  /// Unit of the timelines' times, for the axis. Short times in "s" are shown in ms or µs.
  std::string unit;
  int width = 1200;    ///< pixels; at least 400
  bool memory = true;  ///< the stashes that each worker holds, under its timeline
};

/// Timelines as one SVG image: a row a worker, time to the right, one time scale for all runs, stacked in
/// the order given. The colour tells the micro-batch, its strength the pass; idle time is hatched. No
/// script and no outside resource. A worker's second, third, ... stage has one, two, ... lines at the foot of
/// its jobs; below a run are the stashes that each worker holds, on one scale. Each job is one <rect> inside
/// a group of class "jobs"; beyond some thousand jobs, labels are dropped and jobs become paths, and jobs
/// narrower than half a pixel merge, so that files stay below a few MB.
std::string timeline_svg(std::span<const SvgRun> runs, const SvgOptions& options = {});

}  // namespace starpipe::plan
