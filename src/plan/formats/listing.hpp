// SPDX-License-Identifier: Apache-2.0
#pragma once

// Schedules in the form of files: rows of jobs. Private to plan.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "starpipe/plan/formats/schedule_json.hpp"
#include "starpipe/plan/schedule/schedule.hpp"

namespace starpipe::plan {

/// A job in a row of a file. The row is the worker that computes it.
struct ListedJob {
  Job job;
  int weights = 0;       ///< worker that holds the weights
  std::size_t cell = 0;  ///< position in the row, from 0
  std::optional<std::int64_t> n = {};
  bool with_next = false;  ///< a pair with the next job of the row
};

/// O or L in a file.
struct ListedCopy {
  Job job;
  Home home = Home::host;    ///< of the stash
  std::size_t position = 0;  ///< of n: so many jobs of its worker's row, the first ones, come before
  std::optional<std::int64_t> n = {};
};

/// Rows of jobs read from a file, in the order each worker runs them. Where a stash waits on another worker,
/// n also compares jobs of two workers, so all jobs and copies need one; elsewhere it has no effect.
struct Listing {
  std::string source_name;
  /// Text for messages that names a cell: "ops[0][3]" or "row 1, cell 4".
  std::function<std::string(std::size_t row, std::size_t cell)> position_text = {};
  std::string name = {};  ///< of the schedule; when empty, the stem of the file's name
  std::vector<std::vector<ListedJob>> rows = {};
  /// By worker, in the order of n; empty where no stash is copied.
  std::vector<std::vector<ListedCopy>> copies = {};
  /// As `position_text`, of a copy.
  std::function<std::string(std::size_t row, std::size_t cell)> copy_text = {};
  std::optional<int> stages = {};
  std::optional<int> microbatches = {};
  int slices = 1;
  GraphOfStages graph = StageGraph::chain;
  /// How a worker uses its row. A row is the order under `ordered`; else n is the position in the row.
  Discipline discipline = Discipline::ordered;
  std::vector<int> memory_limits = {};
  bool late_recomputation = false;
};

/// Returns the schedule that a listing describes. Throws InputError, naming source and cell, when a job is
/// missing, listed twice or out of range, or can never start in the order of the rows under the ordered
/// discipline.
Schedule schedule_from_listing(const Listing& listing);

}  // namespace starpipe::plan
