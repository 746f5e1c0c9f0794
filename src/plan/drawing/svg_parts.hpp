// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "plan/explain/critical_path.hpp"
#include "plan/explain/idle_causes.hpp"
#include "starpipe/plan/drawing/schedule_text.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/timeline.hpp"

namespace starpipe::plan {

/// Maps a run to an SVG image: time to pixels, rows to pixels.
struct RunFrame {
  double left = 0;        ///< x of the run's begin
  double top = 0;         ///< y of the first row
  double origin = 0;      ///< time at which the run begins
  double scale = 1;       ///< pixels per unit of time
  double row_height = 0;  ///< pixels
  double row_pitch = 0;   ///< from the top of a row to the top of the next

  [[nodiscard]] double x(double time) const { return left + (time - origin) * scale; }
  [[nodiscard]] double y(std::size_t row) const { return top + static_cast<double>(row) * row_pitch; }
  [[nodiscard]] double middle(std::size_t row) const { return y(row) + row_height / 2; }
};

// Idle time is hatched by its cause.

/// Returns the <pattern> elements of all causes, for <defs>.
std::string idle_patterns();

/// Returns the SVG attribute that fills an area with the hatching of a cause.
std::string idle_fill(IdleCause cause);

/// Returns the legend's text for a cause.
std::string_view idle_meaning(IdleCause cause);

/// Appends the idle parts of a run to `svg`, each as a <rect> whose title says what the worker waited for.
void draw_idle(std::span<const IdlePart> parts, const Schedule& schedule, const RunFrame& frame,
               const ShownUnit& unit, std::string& svg);

/// Returns the SVG attributes of the critical path's outlines.
std::string critical_stroke();

/// Appends the critical path to `svg`: an outline around each of its jobs, and a line through each wait, to
/// the row of the next job. Returns false for a path without jobs.
bool draw_critical_path(std::span<const PathPart> path, const Schedule& as_run, const RunFrame& frame,
                        std::string& svg);

/// The signs of an image that its legend explains.
struct LegendItems {
  std::array<bool, pass_count> passes = {};        ///< which passes occur, by Pass
  bool plain_idle = true;                          ///< idle time is drawn without a cause
  std::array<bool, idle_cause_count> causes = {};  ///< which causes of idle time are drawn
  bool critical_path = false;
  bool memory = false;           ///< stashes are drawn
  bool labels = false;           ///< some label has stage and micro-batch
  bool two_line_labels = false;  ///< such labels have two lines
  bool numbers = false;          ///< some label is the micro-batch alone
  int foot_lines = 0;            ///< the maximum number of lines at the foot of a cell
  int microbatches = 0;
};

/// Appends the legend to `svg`, between the x of `left` and `right` and from `y` down. Returns the y below
/// it.
double draw_legend(const LegendItems& items, double left, double right, double y, std::string& svg);

/// The labels of a run's jobs in SVG: stage and micro-batch, or the micro-batch alone. All jobs of one pass
/// share a style, so that they read as one kind.
class JobLabels {
 public:
  /// `scale` is in pixels per unit of time, `row_height` in pixels. Refers to schedule and timeline.
  JobLabels(const Schedule& schedule, const Timeline& timeline, double scale, double row_height);

  enum class Drawn { nothing, stage_and_microbatch, microbatch };
  /// Adds the label of job `id`, if its cell has room, as text centred on `x` in the row that begins at `y`.
  Drawn draw(JobId id, double x, double y, std::string& svg) const;

  /// True if rows of this height have the micro-batch in a line of its own.
  [[nodiscard]] static bool two_lines(double row_height) { return row_height >= 25; }

 private:
  struct Style {
    double size = 0;       // of the font, in pixels; 0 for no label
    bool numbers = false;  // the label is the micro-batch alone, for lack of room
  };

  [[nodiscard]] double width(JobId id) const;
  [[nodiscard]] bool fits(JobId id, Style style) const;
  // Returns the richest and largest style that most jobs of `pass` have room for.
  [[nodiscard]] Style style_of(Pass pass) const;

  const Schedule& schedule_;
  const Timeline& timeline_;
  double scale_;
  double row_height_;
  std::array<Style, pass_count> styles_ = {};  // by pass
};

// The cells of SVG images: the shade shows the pass, the hue the micro-batch.

enum class Look : std::size_t { light, dark, outlined };
constexpr std::size_t looks = 3;

Look look_of(Pass pass);

/// Returns the SVG attributes of cells of one look and hue, an index of `palette`.
std::string paint(Look look, std::size_t hue);

/// The colour of labels on such cells.
const char* text_fill(Look look, std::size_t hue);

}  // namespace starpipe::plan
