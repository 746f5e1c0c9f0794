// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::plan {

/// How a user wants the workers of a schedule to use its n.
struct OrderRequest {
  std::optional<Discipline> discipline = {};  ///< when absent, the schedule's own
  /// Number of stashes that a worker may hold: one for all workers, or one for each; empty: no limit. If the
  /// schedule's own limit is smaller, the smaller one applies.
  std::vector<int> memory_limits = {};
  /// Workers pick jobs as they run. No order is known before the run, so none can be kept.
  bool dynamic = false;
  /// Keep the order, and choose the homes of all stashes in this way (`find_home_way`); empty: they stay.
  std::string home_way = {};
};

/// Why a schedule does not run in its own order: the first worker that would hold more than its limit.
struct Reordering {
  int worker = 0;
  int held = 0;   ///< largest number of stashes on this worker in the schedule's own order
  int limit = 0;  ///< of this worker
  friend bool operator==(const Reordering&, const Reordering&) = default;
};

/// The result of `as_requested`: a schedule with its memory limits. `check` says whether it keeps them.
struct LimitedSchedule {
  Schedule schedule;
  /// Set when the result leaves the schedule's own order because this order exceeds a limit.
  std::optional<Reordering> reordering = {};
};

/// Returns the limit of each worker, from one for all or one for each. Throws InputError for another number
/// of limits and for a limit below 1.
std::vector<int> limits_of_workers(std::span<const int> limits, int workers);

/// Returns, for each limit, the number of stashes of a stage that fit where so many larger ones do. `parts`:
/// stages that make a larger one.
std::vector<int> stage_stashes(std::vector<int> limits, double parts);

/// Returns the schedule as requested, with the smaller of its own limit and the requested one on each worker.
///
/// With `home_way` the schedule gets its own order, the homes that the way chooses, and the ordered
/// discipline. Throws InputError without a limit that the way needs, with another discipline or `dynamic`,
/// and as the way does.
///
/// A requested discipline is used as it is. Without a limit `dynamic` has no effect here. With a limit, but
/// without a discipline, the first of these cases counts:
/// - A greedy schedule stays greedy, and `check` refuses the limit.
/// - With `dynamic`, any other schedule becomes bounded.
/// - A schedule whose limits do not change is returned as it is.
/// - A schedule whose own order keeps the limits gets this order and the ordered discipline. The own order of
///   a bounded schedule is the order in which `simulate` runs it.
/// - Any other schedule becomes bounded, and `reordering` says why.
///
/// `costs`: as `simulate` takes them. The result may be unable to run, as
/// `check` then reports: a limit below the stages of one micro-batch on a worker, or a requested order that
/// exceeds a limit. A requested limit may need the order of a greedy or bounded schedule. Then the function
/// simulates the schedule, and throws InputError when it cannot.
LimitedSchedule as_requested(const Schedule& schedule, const OrderRequest& request, const Costs& costs);

/// Returns one line for people, with a newline at its end: why the schedule `name` does not run in its own
/// order. Empty if `reordering` is empty.
std::string describe_reordering(const std::string& name, const std::optional<Reordering>& reordering);

}  // namespace starpipe::plan
