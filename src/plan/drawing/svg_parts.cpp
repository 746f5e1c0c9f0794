// SPDX-License-Identifier: Apache-2.0
#include "plan/drawing/svg_parts.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>

#include <fmt/format.h>

#include "base/messages.hpp"

namespace starpipe::plan {

std::string escape(std::string_view text) {
  return with_replaced(one_line(text), {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&quot;"}});
}

std::string px(double value) {
  std::string text = fmt::format("{:.2f}", value);
  while (text.back() == '0') text.pop_back();
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

double text_width(std::string_view text, double size) {
  double em = 0;
  for (const char c : text) em += c == 'W' ? 0.99 : c == ' ' || c == '.' ? 0.33 : c <= '9' ? 0.64 : 0.69;
  return em * size;
}

void put_text(double x, double y, double size, const char* fill, std::string_view text, std::string& svg,
              const char* extra) {
  fmt::format_to(std::back_inserter(svg),
                 "<text x=\"{}\" y=\"{}\" font-size=\"{}\" fill=\"{}\"{}>{}</text>\n", px(x), px(y), px(size),
                 fill, extra, escape(text));
}

double tick_step(double min) {
  const double power = std::pow(10, std::floor(std::log10(min)));
  for (const double factor : std::array{1.0, 2.0, 5.0}) {
    if (factor * power >= min) return factor * power;
  }
  return 10 * power;
}

namespace {

struct Hatching {
  std::string_view meaning;
  const char* background;
  const char* line;
  double step;    // pixels from line to line
  double stroke;  // pixels
  int angle;      // degrees
};

// By cause. Fill and drain belong to the schedule and stay pale. The others differ in angle as well as in
// colour, for readers who see few colours.
constexpr std::array<Hatching, idle_cause_count> hatchings = {{
    {"idle: fill", "#f4f5f6", "#e3e6e9", 6, 1.5, 45},
    {"idle: drain", "#f4f5f6", "#e3e6e9", 6, 1.5, -45},
    {"idle: producer on another worker", "#eef1f4", "#9aa6b4", 6, 1.5, 45},
    {"idle: transfer", "#e3f1fb", "#3b8ac4", 5, 1.4, 90},
    {"idle: order", "#f3edf9", "#9a6cc2", 5, 1.4, 0},
    {"idle: runtime", "#fdeae7", "#d4483b", 5, 1.8, -45},
    {"idle: copy of a stash", "#e6f4ea", "#3d9160", 5, 1.4, 45},
    {"idle: recomputation on another worker", "#faf0e3", "#c8791a", 5, 1.4, -45},
}};

std::string meaning_of(const IdlePart& part, const Schedule& schedule) {
  const auto name = [&](std::optional<JobId> id) { return to_string(schedule.job(*id)); };
  switch (part.cause) {
    case IdleCause::fill:
    case IdleCause::producer:
    case IdleCause::recomputation:
      return fmt::format("{} waits for {} on worker {}", name(part.next), name(part.producer),
                         schedule.compute(*part.producer));
    case IdleCause::drain:
      return "no job is left";
    case IdleCause::transfer:
      return fmt::format("{} waits for {} from worker {}", name(part.next),
                         part.producer ? "the result of " + name(part.producer) : "its weights", part.from);
    case IdleCause::order:
      return fmt::format("{} is ready, {} comes first", name(part.held_back), name(part.next));
    case IdleCause::runtime:
      return fmt::format("{} could start", name(part.next));
    case IdleCause::copy:
      return fmt::format("{} waits for {}", name(part.next), name(part.producer));
  }
  return {};
}

std::string pattern(std::string_view id, const Hatching& look) {
  return fmt::format(
      "<pattern id=\"{0}\" width=\"{1}\" height=\"{1}\" patternUnits=\"userSpaceOnUse\" "
      "patternTransform=\"rotate({2})\"><rect width=\"{1}\" height=\"{1}\" fill=\"{3}\"/>"
      "<rect width=\"{4}\" height=\"{1}\" fill=\"{5}\"/></pattern>\n",
      id, px(look.step), look.angle, look.background, px(look.stroke), look.line);
}

/// Returns the SVG attribute that fills an area with the hatching of a cause.
std::string idle_fill(IdleCause cause) { return fmt::format("fill=\"url(#idle-{})\"", to_string(cause)); }

/// The SVG attributes of the critical path's outlines.
constexpr std::string_view critical_stroke = "fill=\"none\" stroke=\"#1f2328\" stroke-width=\"2\"";

}  // namespace

std::string idle_patterns(bool causes) {
  std::string text = "<defs>\n" + pattern("idle", hatchings[index(IdleCause::fill)]);
  for (std::size_t c = 0; causes && c < hatchings.size(); ++c)
    text += pattern(fmt::format("idle-{}", idle_cause_words[c]), hatchings[c]);
  return text + "</defs>\n";
}

void draw_idle(const RunFrame& frame, const ShownUnit& unit, std::string& svg) {
  std::array<std::string, idle_cause_count> groups;
  for (const IdlePart& part : frame.run.idle) {
    const double x = frame.x(part.start);
    fmt::format_to(
        std::back_inserter(groups[index(part.cause)]),
        "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"><title>{}: {}, {} to {}</title></rect>\n", px(x),
        px(frame.y(index(part.worker))), px(frame.x(part.end) - x), px(frame.row_height),
        to_string(part.cause), escape(meaning_of(part, *frame.run.schedule)), unit.number(part.start),
        unit.number(part.end));
  }
  for (std::size_t c = 0; c < groups.size(); ++c) {
    if (groups[c].empty()) continue;
    fmt::format_to(std::back_inserter(svg), "<g class=\"idle\" {}>\n{}</g>\n",
                   idle_fill(static_cast<IdleCause>(c)), groups[c]);
  }
}

bool draw_critical_path(const RunFrame& frame, std::string& svg) {
  std::string outlines;
  auto out = std::back_inserter(outlines);
  const PathPart* before = nullptr;
  const auto row_of = [&](const PathPart& of) { return index(frame.run.schedule->compute(of.job)); };
  struct Box {
    double y;
    double height;
    [[nodiscard]] double middle() const { return y + height / 2; }
  };
  const auto box_of = [&](const PathPart& part) {
    const Schedule& schedule = *frame.run.schedule;
    if (!is_copy(schedule.job(part.job).pass)) return Box{frame.y(row_of(part)), frame.row_height};
    const Channel channel = schedule.channel(part.job, schedule.compute(part.job));
    return Box{frame.strip_y(row_of(part), channel), frame.strip};
  };
  for (const PathPart& part : frame.run.path) {
    if (part.kind != PathPart::Kind::compute) continue;
    const Box box = box_of(part);
    const double left = frame.x(part.start);
    if (before != nullptr && (box_of(*before).y != box.y || left - frame.x(before->end) > 1)) {
      fmt::format_to(out, "M{} {}L{} {}", px(frame.x(before->end) - 1), px(box_of(*before).middle()),
                     px(left), px(box.middle()));
    }
    // The outline lies within the cell, whose seam is on its right.
    const double width = std::max(0.0, frame.x(part.end) - left - 3);
    fmt::format_to(out, "M{} {}h{}v{}h-{}z", px(left + 1), px(box.y + 1), px(width),
                   px(std::max(0.0, box.height - 2)), px(width));
    before = &part;
  }
  if (outlines.empty()) return false;
  fmt::format_to(std::back_inserter(svg),
                 "<path class=\"critical\" d=\"{}\" {} stroke-linejoin=\"round\"/>\n", outlines,
                 critical_stroke);
  return true;
}

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

  void note(std::string_view text, const char* fill = ink) {
    wrap(width_of(text));
    put_text(x_, y_ + 11.5, 12, fill, text, *svg_);
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
    if (index(microbatches) > palette.size())
      note(fmt::format("{} has the colour of 0, and so on", palette.size()), faint_ink);
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
  constexpr std::array<std::string_view, pass_count> passes = {"F forward",
                                                               "B gradient of the input",
                                                               "W gradient of the weights",
                                                               "BW backward, fused",
                                                               "R forward again",
                                                               "O stash to its home",
                                                               "L stash back (upper strip: out, lower: in)"};
  for (std::size_t p = 0; p < passes.size(); ++p) {
    if (items.passes[p]) legend.entry(paint(look_of(static_cast<Pass>(p)), 0), passes[p]);
  }
  constexpr std::string_view border = " stroke=\"#d0d4d9\"";
  if (items.plain_idle) legend.entry(fmt::format("fill=\"url(#idle)\"{}", border), "idle");
  for (std::size_t c = 0; c < items.causes.size(); ++c) {
    const auto cause = static_cast<IdleCause>(c);
    if (items.causes[c]) legend.entry(idle_fill(cause) + std::string(border), hatchings[c].meaning);
  }
  if (items.critical_path) legend.entry(critical_stroke, "critical path");
  if (items.memory) legend.entry("fill=\"#b6bec8\"", "stashes held, with peak");
  if (items.labels) {
    legend.note(items.two_line_labels ? "F2 above 5: stage 2, micro-batch 5"
                                      : "F2 · 5: stage 2, micro-batch 5");
  }
  if (items.foot_lines == 1) legend.note("line at the foot: the worker's second stage");
  if (items.foot_lines > 1) {
    legend.note(fmt::format("1 to {} lines at the foot: stages 2 to {} of the worker, in order",
                            items.foot_lines, items.foot_lines + 1));
  }
  if (items.pairs) legend.note("line above: two jobs at once");
  if (items.numbers) legend.note(items.labels ? "5 alone: micro-batch 5" : "5: micro-batch 5");
  legend.hues(items.microbatches);
  return legend.bottom();
}

Look look_of(Pass pass) {
  constexpr std::array<Look, pass_count> of_passes = {Look::light,  Look::dark,  Look::outlined, Look::dark,
                                                      Look::dashed, Look::light, Look::dark};
  return of_passes[index(pass)];
}

std::string paint(Look look, std::size_t hue) {
  if (look == Look::outlined)
    return fmt::format("fill=\"#ffffff\" stroke=\"{}\" stroke-width=\"1.2\"", palette[hue].dark);
  if (look == Look::dashed)
    return fmt::format("fill=\"{}\" stroke=\"{}\" stroke-width=\"1.2\" stroke-dasharray=\"3 2\"",
                       palette[hue].light, palette[hue].dark);
  return fmt::format("fill=\"{}\"", look == Look::light ? palette[hue].light : palette[hue].dark);
}

}  // namespace starpipe::plan
