// SPDX-License-Identifier: Apache-2.0
#pragma once

// The actions in the cells of PyTorch's CSV, and the check of those that communicate. Private to plan.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "starpipe/plan/schedule/schedule.hpp"

namespace starpipe::plan {

/// One action of a worker, as a cell lists it.
struct CsvAction {
  enum class Kind : std::uint8_t { compute, send, receive, unshard, reshard, reduce_gradient };
  Kind kind = Kind::compute;
  /// The job that is computed, whose result is sent, or whose input is received; for send and receive, B
  /// stands for any backward pass. For the other kinds only the stage has a meaning.
  Job job = {};
  std::size_t cell = 0;
  std::string_view text = {};  ///< in the file
  bool with_next = false;      ///< a pair with the action behind it
};

/// Returns "row 1, cell 4", counted from 1.
std::string csv_position(std::size_t row, std::size_t cell);

/// Proves that the communication actions of `rows` (one row per worker) are those that `schedule`, read from
/// the same rows, needs: each activation and gradient that changes workers is sent after it is computed and
/// received before it is used; each receive finds its send whatever the timing; stages are unsharded while
/// they compute; gradients are reduced once, at the end. Does nothing if no row has a communication action.
/// O(cells).
///
/// Throws InputError, naming `source_name`, row, cell and job.
void check_communication(const Schedule& schedule, std::span<const std::vector<CsvAction>> rows,
                         const std::string& source_name);

}  // namespace starpipe::plan
