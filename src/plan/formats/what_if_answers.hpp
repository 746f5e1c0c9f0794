// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "plan/explain/compared_run.hpp"
#include "plan/explain/what_if.hpp"

namespace starpipe::plan {

/// The makespan that the median step of a run would have had with a change.
struct Answer {
  std::string change;
  double makespan = 0;                  ///< seconds
  bool divided = false;                 ///< BW was divided into B and W
  std::vector<int> memory_limits = {};  ///< of the run, by worker, when another schedule was made for them
};

/// Reads several changes, such as "comm=0". Throws InputError as `parse_what_if` does, and for a change that
/// is given twice.
std::vector<WhatIf> parse_what_ifs(std::span<const std::string> texts);

/// Returns an answer for each change alone, the shortest makespan first. Throws InputError as `makespan_with`
/// and `makespan_under` do, and for a named schedule that is not defined for the run.
std::vector<Answer> answers(std::span<const WhatIf> changes, const ComparedRun& run);

}  // namespace starpipe::plan
