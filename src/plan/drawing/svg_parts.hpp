// SPDX-License-Identifier: Apache-2.0
#pragma once

// The parts of SVG images: text, colours, idle time, the critical path and the legend.

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "plan/drawing/timeline_svg.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/drawing/schedule_text.hpp"

namespace starpipe::plan {

constexpr const char* ink = "#1f2328";
constexpr const char* faint_ink = "#59636e";

/// Returns `one_line` of the text with XML markup escaped.
std::string escape(std::string_view text);
/// Returns a number of pixels, with at most two decimals.
std::string px(double value);
/// Returns the width in pixels of `text` in a common sans serif of `size` pixels, rather too wide than too
/// narrow.
double text_width(std::string_view text, double size);

/// Appends a text of `size` pixels at x on the base line y. `extra`: more SVG attributes, after a blank.
void put_text(double x, double y, double size, const char* fill, std::string_view text, std::string& svg,
              const char* extra = "");

// The colours of micro-batches in drawings.

/// Two shades of one hue, light for F and dark for B and BW: as SVG colours, and as codes of a terminal's 256
/// colours.
struct Hue {
  const char* light;
  const char* dark;
  int light_code;
  int dark_code;
};

// Neighbours in the cycle differ in more than red against green, so that colour-blind readers can tell
// micro-batches apart. Dark shades suit white text, light ones black text (contrast above 4.5).
inline constexpr std::array<Hue, 8> palette = {{{"#a9d0f2", "#1c5d9c", 153, 25},
                                                {"#fbd19b", "#a85200", 222, 130},
                                                {"#a3dfc8", "#0b6e53", 151, 23},
                                                {"#e6c0e4", "#86358a", 182, 90},
                                                {"#f0e48f", "#766500", 229, 58},
                                                {"#f8bcb3", "#a82a22", 217, 124},
                                                {"#a5e2ea", "#0c6879", 159, 30},
                                                {"#d3d7dc", "#4a535e", 252, 240}}};

/// Index in `palette` of the hue of a micro-batch. The palette repeats.
constexpr std::size_t hue_of(int microbatch) { return index(microbatch) % palette.size(); }

/// Returns the distance of the ticks of an axis: the smallest 1, 2 or 5 times a power of ten that is at least
/// `min`, which must be positive.
double tick_step(double min);

// The cells of SVG images: the shade shows the pass, the hue the micro-batch.

enum class Look : std::size_t { light, dark, outlined, dashed };
constexpr std::size_t looks = 4;

Look look_of(Pass pass);

/// Returns the SVG attributes of cells of one look and hue, an index of `palette`.
std::string paint(Look look, std::size_t hue);

/// Maps a run to an SVG image: time to pixels, rows to pixels.
struct RunFrame {
  const DrawnRun& run;
  double left = 0;        ///< x of the run's begin
  double top = 0;         ///< y of the first row
  double origin = 0;      ///< time at which the run begins
  double scale = 1;       ///< pixels per unit of time
  double row_height = 0;  ///< pixels
  double row_pitch = 0;   ///< from the top of a row to the top of the next
  double strip = 0;       ///< height of each of the two strips of copies under a row

  [[nodiscard]] double x(double time) const { return left + (time - origin) * scale; }
  [[nodiscard]] double y(std::size_t row) const { return top + static_cast<double>(row) * row_pitch; }
  /// Returns the y of the strip of a channel under a row.
  [[nodiscard]] double strip_y(std::size_t row, Channel channel) const {
    return y(row) + row_height + 1 + (channel == Channel::in ? strip + 1 : 0);
  }
};

/// Returns the <defs> element with the hatching of idle time, and with its hatchings by cause if `causes`.
std::string idle_patterns(bool causes);

/// Appends the idle parts of the run to `svg`, each as a <rect> whose title says what the worker waited for.
void draw_idle(const RunFrame& frame, const ShownUnit& unit, std::string& svg);

/// Appends the critical path of the run to `svg`: an outline around each of its jobs, and a line through each
/// wait, to the row of the next job. Returns false for a path without jobs.
bool draw_critical_path(const RunFrame& frame, std::string& svg);

/// The signs of an image that its legend explains.
struct LegendItems {
  std::array<bool, pass_count> passes = {};        ///< which passes occur, by Pass
  bool plain_idle = false;                         ///< idle time of some run is drawn without a cause
  std::array<bool, idle_cause_count> causes = {};  ///< which causes of idle time are drawn
  bool critical_path = false;
  bool memory = false;           ///< stashes are drawn
  bool labels = false;           ///< some label has stage and micro-batch
  bool two_line_labels = false;  ///< such labels have two lines
  bool numbers = false;          ///< some label is the micro-batch alone
  int foot_lines = 0;            ///< the maximum number of lines at the foot of a cell
  int microbatches = 0;
  bool pairs = false;  ///< some jobs are a pair
};

/// Appends the legend to `svg`, between the x of `left` and `right` and from `y` down. Returns the y below
/// it.
double draw_legend(const LegendItems& items, double left, double right, double y, std::string& svg);

}  // namespace starpipe::plan
