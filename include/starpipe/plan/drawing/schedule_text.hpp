// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/timeline.hpp"

namespace starpipe::plan {

struct TextOptions {
  bool colour = false;    ///< use ANSI colours, one for each micro-batch
  int columns = 100;      ///< width of the drawing
  std::string unit = {};  ///< of the timeline's times; short times in "s" are shown in ms or µs
};

/// A drawing for the terminal, with one row per worker and time to the right. Below it are the makespan, the
/// bubble fractions, and a table of each worker's peak activations and received data. Each job has a label
/// when `columns` are enough for it. Otherwise each column shows the pass that takes most of the column's
/// time, and a line says so, with the number of columns that labels would need. Ends in a newline.
std::string schedule_text(const Schedule& schedule, const Timeline& timeline,
                          const TextOptions& options = {});

/// The makespan, the device span and their bubble fractions, one a line. `time_text` writes the two times.
std::string makespan_text(const Timeline& timeline, const std::function<std::string(double)>& time_text);

/// The makespan and the bubble fractions in one line. `makespan`: as text, with its unit.
std::string makespan_sentence(const Timeline& timeline, std::string_view makespan);

}  // namespace starpipe::plan
