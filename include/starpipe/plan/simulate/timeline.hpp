// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"
#include "starpipe/plan/simulate/transfers.hpp"

namespace starpipe::plan {

/// When a job computed.
struct Span {
  double start = 0;
  double end = 0;
};

/// A schedule's run, predicted or measured, and what follows from it.
struct Timeline {
  /// By JobId, in the unit of the durations. A predicted step begins at time 0; a first job that must fetch
  /// its weights starts later. Slots without a job have an empty span.
  std::vector<Span> spans;
  double makespan = 0;         ///< first start to last end, all workers
  double bubble_fraction = 0;  ///< 1 - busy / (workers * makespan)
  double device_span = 0;      ///< the longest first start to last end of one worker
  /// 1 - work / device_span, work being the longest busy time of one worker: the zero-bubble papers'
  /// bubble rate (source 004, Table 4).
  double device_bubble_fraction = 0;

  // Per worker:
  std::vector<double> busy;                          ///< time spent computing
  std::vector<int> peak_activations;                 ///< most live stashes
  std::vector<std::uint64_t> peak_activation_bytes;  ///< most bytes of what MemoryStep counts
  std::vector<Transfers> received;
};

/// What follows from the spans of a run, by JobId; predicted and measured runs go through this one function.
/// O(jobs log jobs).
Timeline evaluate(const Schedule& schedule, const Costs& costs, std::vector<Span> spans);

}  // namespace starpipe::plan
