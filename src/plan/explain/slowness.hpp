// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "starpipe/plan/explain/recorded_step.hpp"
#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::plan {

/// How fast one worker runs one pass of one stage.
struct KernelSpeed {
  int stage = 0;
  Pass pass = Pass::F;
  int worker = 0;
  int jobs = 0;
  double mean = 0;  ///< seconds of a job
  /// The time of a unit of work, over the typical one: the lower median over all stages and workers of this
  /// pass. 1 when nothing can be compared.
  double ratio = 1;
};

/// The speed of every kernel, the slowest first. `work`: FLOPs or expected durations of each stage, as
/// `Costs::durations`: one entry a stage, or one for all; {Durations{}} when unknown. Passes without work
/// have the ratio 1. Throws InputError for another number of entries. O(jobs log jobs).
std::vector<KernelSpeed> kernel_speeds(const RecordedStep& step, std::span<const Durations> work);

/// How long transfers from one worker to another took.
struct LinkSpeed {
  int from = 0;
  int to = 0;
  int transfers = 0;  ///< observed ones
  double median = 0;  ///< seconds
  double ratio = 1;   ///< to the lower median of all links' medians
};

/// The observed transfers by link, the slowest first. O(jobs log jobs).
std::vector<LinkSpeed> link_speeds(const RecordedStep& step);

}  // namespace starpipe::plan
