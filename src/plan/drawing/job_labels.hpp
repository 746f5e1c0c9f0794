// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string>

#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/timeline.hpp"

namespace starpipe::plan::detail {

/// The labels of a run's jobs in SVG: stage and micro-batch, or the micro-batch alone. All jobs of one pass
/// share a style, so that they read as one kind.
class JobLabels {
 public:
  /// `scale` is in pixels per unit of time, `row_height` in pixels. Refers to schedule and timeline.
  JobLabels(const Schedule& schedule, const Timeline& timeline, double scale, double row_height);

  enum class Drawn { nothing, stage_and_microbatch, microbatch };
  /// Adds the label of job `id`, if its cell has room, as text centred on `x` in the row that begins at `y`.
  Drawn draw(JobId id, double x, double y, std::string& svg) const;

  /// Whether rows of this height have the micro-batch in a line of its own.
  [[nodiscard]] static bool two_lines(double row_height) { return row_height >= 25; }

 private:
  struct Style {
    double size = 0;       // of the font, in pixels; 0 for no label
    bool numbers = false;  // the label is the micro-batch alone, because there is no room for more
  };

  [[nodiscard]] double width(JobId id) const;
  [[nodiscard]] bool fits(JobId id, Style style) const;
  // The richest and largest style that most jobs of `pass` have room for.
  [[nodiscard]] Style style_of(Pass pass) const;

  const Schedule& schedule_;
  const Timeline& timeline_;
  double scale_;
  double row_height_;
  std::array<Style, pass_count> styles_ = {};  // by pass
};

}  // namespace starpipe::plan::detail
