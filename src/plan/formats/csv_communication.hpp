// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the cells of PyTorch's CSV say; private to plan.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "starpipe/plan/schedule/schedule.hpp"

namespace starpipe::plan::detail {

/// One action of a worker.
struct CsvAction {
  enum class Kind : std::uint8_t { compute, send, receive, unshard, reshard, reduce_gradient };
  Kind kind = Kind::compute;
  /// What is computed; whose result is sent, or input received (F, or B for any backward pass); of the others
  /// the stage alone means something.
  Job job = {};
  std::size_t cell = 0;
  std::string_view text = {};  ///< in the file
};

/// "row 1, cell 4", counted from 1.
std::string csv_place(std::size_t row, std::size_t cell);

/// Proves that the communication actions of `rows`, a row a worker, are what `schedule`, read from the same
/// rows, needs: each activation and gradient that changes workers is sent once it is there and received
/// before it is used, each receive finds its send whatever the timing, stages are unsharded while they
/// compute, and gradients are reduced once, at the end. Rows without any need none. O(cells).
///
/// Throws InputError, naming `source_name`, row, cell and job.
void check_communication(const Schedule& schedule, std::span<const std::vector<CsvAction>> rows,
                         const std::string& source_name);

}  // namespace starpipe::plan::detail
