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

/// Returns a drawing for the terminal, with one row per worker and time to the right. Below it are the
/// makespan, the bubble fractions, and a table of each worker's peak stashes and received data. Each job
/// has a label when `columns` are enough for it. Otherwise each column shows the pass that takes most of the
/// column's time, and a line says so, with the number of columns that labels would need. Ends in a newline.
std::string schedule_text(const Schedule& schedule, const Timeline& timeline,
                          const TextOptions& options = {});

/// Returns the makespan, the device span and their bubble fractions, one per line. `time_text` writes the two
/// times.
std::string makespan_text(const Timeline& timeline, const std::function<std::string(double)>& time_text);

/// Returns the makespan and the bubble fractions in one line. `makespan`: as text, with its unit.
std::string makespan_sentence(const Timeline& timeline, std::string_view makespan);

/// Returns what follows the discipline where not all stashes wait with their workers: ", with recomputation".
std::string describe_homes(const Schedule& schedule);

/// How times are shown: their unit, and the factor from the unit in which they are given. Short times in
/// seconds are shown in ms or µs.
class ShownUnit {
 public:
  /// `unit`: of the times given; empty: without a name. `longest`: the longest time that is shown.
  ShownUnit(const std::string& unit, double longest);

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] double factor() const { return factor_; }
  /// Returns the time's number in this unit, without the unit's name.
  [[nodiscard]] std::string number(double time) const;
  /// Returns number and unit: "4.5 ms", or "4.5" when the unit has no name.
  [[nodiscard]] std::string text(double time) const;
  /// Returns "busy (ms)", or the heading alone when the unit has no name.
  [[nodiscard]] std::string heading(const std::string& heading) const;

 private:
  std::string name_;
  double factor_ = 1;
};

}  // namespace starpipe::plan
