// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "starpipe/plan/schedule/schedule.hpp"

namespace starpipe::plan {

/// The verdict of `check`.
struct CheckResult {
  /// Empty when the schedule is sound; otherwise one line that names the job, worker or stage at fault.
  std::string problem;
  /// When the problem is a cycle: its jobs, each waiting for the one before it, the first for the last.
  std::vector<Job> cycle;

  [[nodiscard]] bool ok() const { return problem.empty(); }
};

/// Proves, before anything runs, that a schedule finishes whatever the timing: every job is on a worker
/// that exists, the data dependencies and (ordered discipline) the workers' orders have no cycle, and
/// the memory limits hold. O(jobs).
CheckResult check(const Schedule& schedule);

/// Every job once, each after all it waits for (data, and under the ordered discipline the worker's
/// order); among those free, smallest n first. Throws InputError with `check`'s message if there is none.
std::vector<JobId> topological_order(const Schedule& schedule);

}  // namespace starpipe::plan
