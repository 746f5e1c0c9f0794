// SPDX-License-Identifier: Apache-2.0
#include "plan/drawing/svg_rows.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <vector>

#include <fmt/format.h>

#include "plan/drawing/svg_text.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::plan::detail {
namespace {

constexpr double narrowest = 0.4;  // pixels

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
               const ShownUnit& unit, bool titles, std::string& svg) {
  std::array<std::string, idle_cause_count> groups;
  for (const IdlePart& part : parts) {
    const double x = frame.x(part.start);
    const double width = frame.x(part.end) - x;
    const double y = frame.y(index(part.worker));
    auto out = std::back_inserter(groups[index(part.cause)]);
    if (titles) {
      fmt::format_to(
          out, "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"><title>{}: {}, {} to {}</title></rect>\n",
          px(x), px(y), px(width), px(frame.row_height), to_string(part.cause),
          escape(meaning_of(part, schedule)), unit.number(part.start), unit.number(part.end));
    } else if (width >= narrowest) {
      fmt::format_to(out, "M{} {}h{}v{}h-{}z", px(x), px(y), px(width), px(frame.row_height), px(width));
    }
  }
  for (std::size_t c = 0; c < groups.size(); ++c) {
    if (groups[c].empty()) continue;
    fmt::format_to(std::back_inserter(svg), "<g class=\"idle\" {}>\n{}</g>\n",
                   idle_fill(static_cast<IdleCause>(c)),
                   titles ? groups[c] : fmt::format("<path d=\"{}\"/>\n", groups[c]));
  }
}

namespace {

// A job of the path, or in dense images several in one row.
struct Stretch {
  std::size_t row = 0;
  double left = 0;   // pixels
  double right = 0;  // pixels
};

std::vector<Stretch> stretches_of(std::span<const PathPart> path, const Schedule& as_run,
                                  const RunFrame& frame, bool merged) {
  std::vector<Stretch> stretches;
  for (const PathPart& part : path) {
    if (part.kind != PathPart::Kind::compute) continue;
    const Stretch stretch = {index(as_run.compute(part.job)), frame.x(part.start), frame.x(part.end)};
    if (merged && !stretches.empty() && stretches.back().row == stretch.row) {
      stretches.back().right = stretch.right;
    } else {
      stretches.push_back(stretch);
    }
  }
  return stretches;
}

std::string outlines(const std::vector<Stretch>& stretches, const RunFrame& frame) {
  std::string path;
  auto out = std::back_inserter(path);
  const Stretch* before = nullptr;
  for (const Stretch& stretch : stretches) {
    const double top = frame.y(stretch.row);
    if (before != nullptr && (before->row != stretch.row || stretch.left - before->right > 1)) {
      fmt::format_to(out, "M{} {}L{} {}", px(before->right - 1), px(frame.middle(before->row)),
                     px(stretch.left), px(frame.middle(stretch.row)));
    }
    // The outline lies within the cell, whose seam is on its right.
    const double width = std::max(0.0, stretch.right - stretch.left - 3);
    fmt::format_to(out, "M{} {}h{}v{}h-{}z", px(stretch.left + 1), px(top + 1), px(width),
                   px(frame.row_height - 2), px(width));
    before = &stretch;
  }
  return path;
}

std::string thin_line(const std::vector<Stretch>& stretches, const RunFrame& frame) {
  std::string path;
  for (const Stretch& stretch : stretches) {
    fmt::format_to(std::back_inserter(path), "{}{} {}H{}", path.empty() ? "M" : "L", px(stretch.left),
                   px(frame.middle(stretch.row)), px(stretch.right));
  }
  return path;
}

}  // namespace

std::string critical_stroke() { return fmt::format("fill=\"none\" stroke=\"{}\" stroke-width=\"2\"", ink); }

bool draw_critical_path(std::span<const PathPart> path, const Schedule& as_run, const RunFrame& frame,
                        bool dense, std::string& svg) {
  constexpr double narrowest = 8;  // pixels: the mean length of a stretch that can be followed
  const std::vector<Stretch> stretches = stretches_of(path, as_run, frame, dense);
  if (stretches.empty()) return false;
  const double length = stretches.back().right - stretches.front().left;
  if (dense && length < narrowest * static_cast<double>(stretches.size())) return false;
  fmt::format_to(std::back_inserter(svg),
                 "<path class=\"critical\" d=\"{}\" {} stroke-linejoin=\"round\"/>\n",
                 dense ? thin_line(stretches, frame) : outlines(stretches, frame), critical_stroke());
  return true;
}

}  // namespace starpipe::plan::detail
