// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the readers and writers of schedules share; private to plan.

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "starpipe/plan/schedule.hpp"
#include "starpipe/plan/simulate.hpp"

namespace starpipe::plan::detail {

/// Per worker, its jobs in the order they ran.
std::vector<std::vector<JobId>> run_order(const Schedule& schedule, const Timeline& timeline);

/// The first start of any job; 0 for a predicted timeline.
double first_start(const Schedule& schedule, const Timeline& timeline);

/// At most five significant digits and no exponent for everyday magnitudes: "33", "0.2727", "1204.5".
std::string number_text(double value);

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
  std::string name;  ///< the file's stem when empty
  std::vector<std::vector<ListedJob>> rows;
  std::optional<int> stages;
  std::optional<int> microbatches;
  std::optional<std::vector<std::pair<int, int>>> edges;  ///< a chain when absent
  std::vector<int> memory_limits;
  bool recompute = false;
};

/// The schedule a listing describes. Throws InputError naming source and place when a job is missing,
/// listed twice, or out of range.
Schedule schedule_from_listing(const Listing& listing);

}  // namespace starpipe::plan::detail
