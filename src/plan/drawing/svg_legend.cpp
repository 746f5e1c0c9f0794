// SPDX-License-Identifier: Apache-2.0
#include "plan/drawing/svg_legend.hpp"

#include <algorithm>
#include <iterator>
#include <string_view>

#include <fmt/format.h>

#include "plan/drawing/cell_paint.hpp"
#include "plan/drawing/palette.hpp"
#include "plan/drawing/svg_rows.hpp"
#include "plan/drawing/svg_path.hpp"
#include "plan/drawing/svg_text.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::plan::detail {
namespace {

constexpr double line_height = 22;

/// Sets entries from left to right, and begins a new line where an entry does not fit.
class Legend {
 public:
  Legend(double left, double right, double y, std::string& svg)
      : left_(left), right_(right), x_(left), y_(y), svg_(&svg) {}

  /// A swatch, and what it means.
  void entry(std::string_view paint, std::string_view text) {
    constexpr double swatch = 18;
    const double width = swatch + 6 + width_of(text);
    wrap(width);
    fmt::format_to(std::back_inserter(*svg_),
                   "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"13\" rx=\"2\" {}/>\n", px(x_ + 0.5),
                   px(y_ + 0.5), px(swatch), paint);
    put_text(x_ + swatch + 6, y_ + 11.5, 12, ink, text, *svg_);
    x_ += width + 16;
  }

  void note(std::string_view text) {
    wrap(width_of(text));
    put_text(x_, y_ + 11.5, 12, ink, text, *svg_);
    x_ += width_of(text) + 16;
  }

  /// The hues of micro-batches, on a line of their own.
  void hues(int microbatches) {
    x_ = left_;
    y_ += line_height;
    put_text(x_, y_ + 11.5, 12, ink, "micro-batch", *svg_);
    x_ += 84;
    for (std::size_t hue = 0; hue < std::min(index(microbatches), palette.size()); ++hue) {
      wrap(52);
      fmt::format_to(std::back_inserter(*svg_),
                     "<rect x=\"{0}\" y=\"{1}\" width=\"11\" height=\"14\" fill=\"{2}\"/>"
                     "<rect x=\"{3}\" y=\"{1}\" width=\"11\" height=\"14\" fill=\"{4}\"/>\n",
                     px(x_), px(y_), palette[hue].light, px(x_ + 11), palette[hue].dark);
      put_text(x_ + 28, y_ + 11.5, 12, ink, std::to_string(hue), *svg_);
      x_ += 52;
    }
    if (index(microbatches) <= palette.size()) return;
    const auto text = fmt::format("{} has the colour of 0, and so on", palette.size());
    wrap(width_of(text));
    put_text(x_, y_ + 11.5, 12, faint_ink, text, *svg_);
  }

  [[nodiscard]] double bottom() const { return y_ + line_height; }

 private:
  static double width_of(std::string_view text) { return text_width(text, 12) * 0.85; }

  void wrap(double width) {
    if (x_ + width <= right_ || x_ <= left_) return;
    x_ = left_;
    y_ += line_height;
  }

  double left_;
  double right_;
  double x_;
  double y_;
  std::string* svg_;
};

}  // namespace

double draw_legend(const LegendItems& items, double left, double right, double y, std::string& svg) {
  Legend legend(left, right, y + 4, svg);
  const auto pass = [&](Pass which, Look look, std::string_view text) {
    if (items.passes[index(which)]) legend.entry(paint(look, 0, items.hatched), text);
  };
  pass(Pass::F, Look::light, "F forward");
  pass(Pass::B, Look::dark, "B gradient of the input");
  pass(Pass::W, Look::outlined, "W gradient of the weights");
  pass(Pass::BW, Look::dark, "BW backward, fused");
  constexpr std::string_view border = " stroke=\"#d0d4d9\"";
  if (items.plain_idle) legend.entry(fmt::format("fill=\"url(#idle)\"{}", border), "idle");
  for (std::size_t c = 0; c < items.causes.size(); ++c) {
    const auto cause = static_cast<IdleCause>(c);
    if (items.causes[c]) legend.entry(idle_fill(cause) + std::string(border), idle_meaning(cause));
  }
  if (items.critical_path) legend.entry(critical_stroke(), "critical path");
  if (items.memory) legend.entry("fill=\"#b6bec8\"", "stashes held, and the most");
  if (items.labels) {
    legend.note(items.two_line_labels ? "F2 above 5: stage 2, micro-batch 5"
                                      : "F2 · 5: stage 2, micro-batch 5");
  }
  if (items.foot_lines == 1) legend.note("line at the foot: the worker's second stage");
  if (items.foot_lines > 1) {
    legend.note(fmt::format("1 to {} lines at the foot: stages 2 to {} of the worker, in order",
                            items.foot_lines, items.foot_lines + 1));
  }
  if (items.numbers) legend.note(items.labels ? "5 alone: micro-batch 5" : "5: micro-batch 5");
  legend.hues(items.microbatches);
  return legend.bottom();
}

}  // namespace starpipe::plan::detail
