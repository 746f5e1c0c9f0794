// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::plan {

/// How a user wants the workers of a schedule to use its n.
struct OrderRequest {
  std::optional<Discipline> discipline = {};  ///< when absent, the schedule's own
  /// Number of stashes that each worker may hold. If the schedule's own limit is smaller, the smaller one
  /// applies.
  std::optional<int> memory_limit = {};
  /// Workers pick jobs as they run. No order is known before the run, so none can be kept.
  bool dynamic = false;
};

/// Why a schedule does not run in its own order: the first worker that would hold more than its limit.
struct Reordering {
  int worker = 0;
  int held = 0;   ///< largest number of stashes on this worker in the schedule's own order
  int limit = 0;  ///< of this worker
  friend bool operator==(const Reordering&, const Reordering&) = default;
};

/// A schedule that keeps its memory limits.
struct LimitedSchedule {
  Schedule schedule;
  std::optional<Reordering> reordering = {};  ///< nothing when the schedule's own order keeps the limits
};

/// The schedule as requested, with the smaller of its own limit and the requested one on each worker.
///
/// An order that fits a requested limit stays, unless a discipline or `dynamic` is requested. The order of a
/// bounded schedule is the one in which `simulate` runs it; it stays under the ordered discipline. A greedy
/// schedule keeps no limit: `check` refuses the result, unless another discipline is requested.
/// Where the own order does not fit, the result is bounded, and `reordering` says why. A requested discipline
/// is obeyed; with a limit, `dynamic` alone means bounded.
///
/// `costs`: as `simulate` takes them; with recomputation, B includes F. The result may be unable to run, as
/// `check` then reports: a limit below the stages of one micro-batch on a worker, or a requested order that
/// exceeds a limit. Throws InputError when a greedy or bounded schedule cannot be simulated.
LimitedSchedule as_requested(const Schedule& schedule, const OrderRequest& request, const Costs& costs);

/// One line that ends in a newline, for people; empty for no reordering.
std::string describe_reordering(const std::string& schedule, const std::optional<Reordering>& reordering);

}  // namespace starpipe::plan
