// SPDX-License-Identifier: Apache-2.0
#pragma once

// Schedules as files list them: rows of jobs. Private to plan.

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "starpipe/plan/formats/imported_schedule.hpp"
#include "starpipe/plan/schedule/schedule.hpp"

namespace starpipe::plan::detail {

/// A job as listed in a file: on the worker whose row it is in, `cell` telling where in that row.
struct ListedJob {
  Job job;
  int weights = 0;
  std::size_t cell = 0;
};

/// Rows of jobs read from a file, in the order each worker runs them.
struct Listing {
  std::string source_name;
  /// "ops[0][3]" or "row 1, cell 4".
  std::string (*where)(std::size_t row, std::size_t cell) = nullptr;
  std::string name = {};  ///< the file's stem when empty
  std::vector<std::vector<ListedJob>> rows = {};
  std::optional<int> stages = {};
  std::optional<int> microbatches = {};
  GraphOfStages graph = StageGraph::chain;
  std::vector<int> memory_limits = {};
  bool recompute = false;
};

/// The schedule that a listing describes, of the ordered discipline. Throws InputError naming source and
/// place when a job is missing, listed twice, or out of range, or can never start in the order of the rows.
Schedule schedule_from_listing(const Listing& listing);

}  // namespace starpipe::plan::detail
