// SPDX-License-Identifier: Apache-2.0
#include "plan/drawing/svg_rows.hpp"

#include <algorithm>
#include <array>
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

}  // namespace starpipe::plan
