// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/timeline.hpp"

namespace starpipe::plan {

struct TextOptions {
  bool colour = false;  ///< use ANSI colours, one for each micro-batch
  int columns = 100;    ///< width of the terminal
};

/// A drawing for the terminal, with one row per worker and time to the right. Below it are the makespan, the
/// bubble fractions, and a table of each worker's peak activations and received data. A drawing wider than
/// the terminal is replaced by a line that says so. Ends in a newline.
std::string schedule_text(const Schedule& schedule, const Timeline& timeline,
                          const TextOptions& options = {});

/// The makespan, the device span and their bubble fractions, one a line. `time_text` writes the two times.
std::string makespan_text(const Timeline& timeline, const std::function<std::string(double)>& time_text);

}  // namespace starpipe::plan
