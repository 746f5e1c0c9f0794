// SPDX-License-Identifier: Apache-2.0
#include "plan/drawing/svg_parts.hpp"

#include <algorithm>
#include <iterator>
#include <vector>

#include <fmt/format.h>

#include "plan/drawing/svg_text.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::plan {
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
}};

std::string meaning_of(const IdlePart& part, const Schedule& schedule) {
  const auto name = [&](std::optional<JobId> id) { return to_string(schedule.job(*id)); };
  switch (part.cause) {
    case IdleCause::fill:
    case IdleCause::producer:
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
  }
  return {};
}

}  // namespace

std::string idle_patterns() {
  std::string text;
  for (std::size_t c = 0; c < hatchings.size(); ++c) {
    const Hatching& look = hatchings[c];
    fmt::format_to(std::back_inserter(text),
                   "<pattern id=\"idle-{0}\" width=\"{1}\" height=\"{1}\" patternUnits=\"userSpaceOnUse\" "
                   "patternTransform=\"rotate({2})\"><rect width=\"{1}\" height=\"{1}\" fill=\"{3}\"/>"
                   "<rect width=\"{4}\" height=\"{1}\" fill=\"{5}\"/></pattern>\n",
                   idle_cause_words[c], px(look.step), look.angle, look.background, px(look.stroke),
                   look.line);
  }
  return text;
}

std::string idle_fill(IdleCause cause) { return fmt::format("fill=\"url(#idle-{})\"", to_string(cause)); }

std::string_view idle_meaning(IdleCause cause) { return hatchings[index(cause)].meaning; }

void draw_idle(std::span<const IdlePart> parts, const Schedule& schedule, const RunFrame& frame,
               const ShownUnit& unit, std::string& svg) {
  std::array<std::string, idle_cause_count> groups;
  for (const IdlePart& part : parts) {
    const double x = frame.x(part.start);
    fmt::format_to(
        std::back_inserter(groups[index(part.cause)]),
        "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"><title>{}: {}, {} to {}</title></rect>\n", px(x),
        px(frame.y(index(part.worker))), px(frame.x(part.end) - x), px(frame.row_height),
        to_string(part.cause), escape(meaning_of(part, schedule)), unit.number(part.start),
        unit.number(part.end));
  }
  for (std::size_t c = 0; c < groups.size(); ++c) {
    if (groups[c].empty()) continue;
    fmt::format_to(std::back_inserter(svg), "<g class=\"idle\" {}>\n{}</g>\n",
                   idle_fill(static_cast<IdleCause>(c)), groups[c]);
  }
}

std::string critical_stroke() { return fmt::format("fill=\"none\" stroke=\"{}\" stroke-width=\"2\"", ink); }

bool draw_critical_path(std::span<const PathPart> path, const Schedule& as_run, const RunFrame& frame,
                        std::string& svg) {
  std::string outlines;
  auto out = std::back_inserter(outlines);
  const PathPart* before = nullptr;
  for (const PathPart& part : path) {
    if (part.kind != PathPart::Kind::compute) continue;
    const auto row_of = [&](const PathPart& of) { return index(as_run.compute(of.job)); };
    const std::size_t row = row_of(part);
    const double left = frame.x(part.start);
    if (before != nullptr && (row_of(*before) != row || left - frame.x(before->end) > 1)) {
      fmt::format_to(out, "M{} {}L{} {}", px(frame.x(before->end) - 1), px(frame.middle(row_of(*before))),
                     px(left), px(frame.middle(row)));
    }
    // The outline lies within the cell, whose seam is on its right.
    const double width = std::max(0.0, frame.x(part.end) - left - 3);
    fmt::format_to(out, "M{} {}h{}v{}h-{}z", px(left + 1), px(frame.y(row) + 1), px(width),
                   px(frame.row_height - 2), px(width));
    before = &part;
  }
  if (outlines.empty()) return false;
  fmt::format_to(std::back_inserter(svg),
                 "<path class=\"critical\" d=\"{}\" {} stroke-linejoin=\"round\"/>\n", outlines,
                 critical_stroke());
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
    if (items.passes[index(which)]) legend.entry(paint(look, 0), text);
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
  if (items.numbers) legend.note(items.labels ? "5 alone: micro-batch 5" : "5: micro-batch 5");
  legend.hues(items.microbatches);
  return legend.bottom();
}

namespace {

std::string upper(const Schedule& schedule, const Job& job) {
  return fmt::format("{}{}", to_string(job.pass), schedule.graph().label(job.stage));
}
std::string lower(const Job& job) { return std::to_string(job.microbatch); }

}  // namespace

JobLabels::JobLabels(const Schedule& schedule, const Timeline& timeline, double scale, double row_height)
    : schedule_(schedule), timeline_(timeline), scale_(scale), row_height_(row_height) {
  for (const Pass pass : {Pass::F, Pass::B, Pass::W, Pass::BW}) {
    styles_[index(pass)] = style_of(pass);
  }
}

double JobLabels::width(JobId id) const {
  const Span span = timeline_.spans[id];
  return (span.end - span.start) * scale_;
}

bool JobLabels::fits(JobId id, Style style) const {
  const Job job = schedule_.job(id);
  return text_width(style.numbers ? lower(job) : upper(schedule_, job), style.size) <= width(id) - 2;
}

JobLabels::Style JobLabels::style_of(Pass pass) const {
  std::vector<JobId> jobs;
  for (const JobId id : schedule_.order()) {
    if (schedule_.job(id).pass == pass) jobs.push_back(id);
  }
  for (const bool numbers : {false, true}) {
    for (const double size : {12.0, 11.0, 10.0, 9.0, 8.0}) {
      const Style style{size, numbers};
      if (size > row_height_ - 3 || (numbers && size > 10)) continue;
      const auto fit = std::ranges::count_if(jobs, [&](JobId id) { return fits(id, style); });
      if (static_cast<std::size_t>(fit) * 10 >= jobs.size() * 8) return style;
    }
  }
  return {};
}

JobLabels::Drawn JobLabels::draw(JobId id, double x, double y, std::string& svg) const {
  const Job job = schedule_.job(id);
  const Style style = styles_[index(job.pass)];
  if (style.size == 0 || !fits(id, style)) return Drawn::nothing;
  const double size = style.size;
  const double middle = y + row_height_ / 2;
  const auto line = [&](double baseline, double font, const std::string& text) {
    fmt::format_to(std::back_inserter(svg), "<text x=\"{}\" y=\"{}\" font-size=\"{}\">{}</text>\n", px(x),
                   px(baseline), px(font), text);
  };
  if (style.numbers) {
    line(middle + size * 0.36, size, lower(job));
    return Drawn::microbatch;
  }
  if (two_lines(row_height_)) {
    line(middle - 2, size, upper(schedule_, job));
    line(middle + 10, std::min(size, 10.0), lower(job));
  } else if (text_width(upper(schedule_, job) + " " + lower(job), size) + 6 <= width(id)) {
    line(middle + size * 0.36, size, upper(schedule_, job) + " · " + lower(job));
  } else {
    line(middle + size * 0.36, size, upper(schedule_, job));
  }
  return Drawn::stage_and_microbatch;
}

Look look_of(Pass pass) {
  switch (pass) {
    case Pass::F:
      return Look::light;
    case Pass::W:
      return Look::outlined;
    case Pass::B:
    case Pass::BW:
      break;
  }
  return Look::dark;
}

std::string paint(Look look, std::size_t hue) {
  switch (look) {
    case Look::light:
      return fmt::format("fill=\"{}\"", palette[hue].light);
    case Look::dark:
      return fmt::format("fill=\"{}\"", palette[hue].dark);
    case Look::outlined:
      break;
  }
  return fmt::format("fill=\"#ffffff\" stroke=\"{}\" stroke-width=\"1.2\"", palette[hue].dark);
}

const char* text_fill(Look look, std::size_t hue) {
  return look == Look::dark ? "#ffffff" : look == Look::light ? ink : palette[hue].dark;
}

}  // namespace starpipe::plan
