// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string>

#include "plan/explain/idle_causes.hpp"
#include "starpipe/plan/schedule/job.hpp"

namespace starpipe::plan::detail {

/// The signs of an image that its legend explains.
struct LegendItems {
  std::array<bool, pass_count> passes = {};        ///< which passes occur, by Pass
  bool plain_idle = true;                          ///< idle time is drawn without a cause
  std::array<bool, idle_cause_count> causes = {};  ///< which causes of idle time are drawn
  bool critical_path = false;
  bool memory = false;           ///< stashes are drawn
  bool hatched = false;          ///< as `paint` takes it
  bool labels = false;           ///< some label has stage and micro-batch
  bool two_line_labels = false;  ///< such labels have two lines
  bool numbers = false;          ///< some label is the micro-batch alone
  int foot_lines = 0;            ///< the most lines at the foot of a cell
  int microbatches = 0;
};

/// Appends the legend to `svg`, between the x of `left` and `right` and from `y` down. Returns the y below
/// it.
double draw_legend(const LegendItems& items, double left, double right, double y, std::string& svg);

}  // namespace starpipe::plan::detail
