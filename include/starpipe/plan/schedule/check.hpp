// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "starpipe/plan/schedule/schedule.hpp"

namespace starpipe::plan {

/// The result of `check`.
struct CheckResult {
  /// Empty when the schedule is sound; otherwise one line that names the job, worker or stage at fault.
  std::string problem;
  /// When the problem is a cycle, its jobs: each waits for the job before it, the first for the last.
  std::vector<Job> cycle;

  [[nodiscard]] bool ok() const { return problem.empty(); }
};

/// Proves, before anything runs, that a schedule finishes whatever the timing: every job is on a worker
/// that exists, the memory limits hold, and there is no cycle in the data dependencies and (under the ordered
/// discipline) the workers' orders. O(jobs).
CheckResult check(const Schedule& schedule);

/// For each worker, the largest number of stashes that it holds when it runs its jobs in the order of n. A
/// stash counts from the first to the last of those passes of its stage and micro-batch that the worker runs;
/// with recomputation F does not count among them. A run in this order has these peaks, so the order keeps a
/// memory limit that is not smaller. Every job must be on a worker that exists. O(jobs).
std::vector<int> stashes_in_order(const Schedule& schedule);

/// Every job once, after all jobs that it waits for: the producers of its data and, under the ordered
/// discipline, the jobs before it on its worker. Among jobs free to go next, the smallest n comes first.
/// Throws InputError with `check`'s message when there is no such order.
std::vector<JobId> topological_order(const Schedule& schedule);

}  // namespace starpipe::plan
