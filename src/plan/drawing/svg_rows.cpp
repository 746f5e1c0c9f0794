// SPDX-License-Identifier: Apache-2.0
#include "plan/drawing/svg_rows.hpp"

#include <array>
#include <iterator>

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

}  // namespace starpipe::plan::detail
