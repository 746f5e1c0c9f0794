// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/timeline.hpp"

namespace starpipe::plan {

struct TextOptions {
  bool colour = false;  ///< ANSI colours, one a micro-batch
  int columns = 100;    ///< of the terminal
};

/// A drawing for the terminal, one row a worker with time to the right, and below it a table of makespan,
/// bubble fractions, peak activations and what each worker receives. A drawing wider than the terminal is
/// left out, with a line that says so. Ends in a newline.
std::string schedule_text(const Schedule& schedule, const Timeline& timeline,
                          const TextOptions& options = {});

}  // namespace starpipe::plan
