// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/search/layout.hpp"
#include "starpipe/plan/simulate/costs.hpp"
#include "starpipe/plan/simulate/timeline.hpp"

namespace starpipe::plan {

/// What to search over: one problem when chunks and layout are given, else several.
struct SearchRequest {
  int workers = 1;
  int microbatches = 1;
  /// C. Absent: 1 to 4, and `costs` and `stash` are then those of a share of the model, 1/W of it each,
  /// that C stages divide equally.
  std::optional<int> chunks = {};
  /// Absent: both.
  std::optional<Layout> layout = {};
  Costs costs = {};
  std::vector<double> stash = {1};
  double memory_limit = std::numeric_limits<double>::infinity();
};

struct SearchProgress {
  double seconds = 0;      ///< since the start
  double done = 0;         ///< share of the work, 0 to 1
  double makespan = 0;     ///< of the best schedule so far
  double lower_bound = 0;  ///< of what is being searched
};

struct SearchOptions {
  /// Seconds after which the search ends, whatever it has.
  double budget = 10;
  /// How much it does, in seconds of a slow core, so that the result does not depend on the clock; the budget
  /// when absent. Two cores of 2020 do in a second what is counted as two.
  std::optional<double> work = {};
  std::uint64_t seed = 1;
  /// Called from time to time, from the thread that called `search`.
  std::function<void(const SearchProgress&)> progress = {};
};

struct SearchResult {
  Schedule schedule;  ///< ordered, named "search"
  Costs costs;        ///< of its stages
  Timeline timeline;
  Layout layout;
  int chunks;
  double memory_limit;              ///< in the unit of the stashes of its stages
  std::vector<double> peak_memory;  ///< by worker, in the same unit
  /// No schedule of any problem that was considered has a smaller makespan.
  double lower_bound;
  bool complete;  ///< false when the budget ended the search: another run may find another schedule
};

/// The schedule with the smallest makespan that it finds within the memory limit.
///
/// Every registered schedule that fits is a start, and so are patterns: a due time for each pass of each
/// stage that is repeated for each micro-batch (source 004, section 2, in real durations), which list
/// scheduling turns into an order that knows durations, transfers and memory; the patterns are improved by
/// random changes, and the orders by tabu search on the critical path (Nowicki and Smutnicki, 1996).
/// Deterministic for one amount of work and one seed if the result is `complete`.
///
/// Throws InputError for counts below 1, costs or sizes that are negative, not finite or of a wrong number,
/// transfers that do not overlap compute, and a memory limit that no schedule can keep, with the least
/// that some can.
SearchResult search(const SearchRequest& request, const SearchOptions& options = {});

}  // namespace starpipe::plan
