// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/drawing/schedule_text.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <optional>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "base/messages.hpp"
#include "base/numbers.hpp"
#include "plan/drawing/svg_parts.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::plan {
namespace {

std::string paint(std::string text, const Job& job) {
  const Hue& hue = palette[hue_of(job.microbatch)];
  switch (job.pass) {
    case Pass::F:
      return fmt::format("\x1b[38;5;16;48;5;{}m{}\x1b[0m", hue.light_code, text);
    case Pass::B:
    case Pass::BW:
      return fmt::format("\x1b[38;5;231;48;5;{}m{}\x1b[0m", hue.dark_code, text);
    case Pass::W:
      return fmt::format("\x1b[7;38;5;{};48;5;16m{}\x1b[0m", hue.light_code, text);
    case Pass::R:  // as F, and underlined
      return fmt::format("\x1b[4;38;5;16;48;5;{}m{}\x1b[0m", hue.light_code, text);
    case Pass::O:
    case Pass::L:
      return fmt::format("\x1b[38;5;{}m{}\x1b[0m", hue.light_code, text);
  }
  return text;
}

/// Returns the largest step such that all starts and ends are multiples of it, or nullopt if it is below a
/// thousandth of the makespan.
std::optional<double> common_step(const Schedule& schedule, const Timeline& timeline, double origin) {
  const double tolerance = timeline.makespan * 1e-9;
  double step = 0;
  for (const JobId id : schedule.order()) {
    for (const double time : {timeline.spans[id].start - origin, timeline.spans[id].end - origin}) {
      double a = std::max(step, time);
      double b = std::min(step, time);
      while (b > tolerance) a = std::exchange(b, std::fmod(a, b));
      step = a;
    }
    if (step < timeline.makespan / 1000) return std::nullopt;
  }
  return step;
}

class Drawing {
 public:
  Drawing(const Schedule& schedule, const Timeline& timeline, const TextOptions& options)
      : schedule_(schedule),
        timeline_(timeline),
        options_(options),
        origin_(first_start(timeline)),
        gutter_(fmt::formatted_size("worker {} ", schedule.workers() - 1)),
        unit_(options.unit, timeline.makespan) {}

  /// Returns the drawing, or nullopt if no pass takes time.
  std::optional<std::string> draw() {
    if (!(timeline_.makespan > 0)) return std::nullopt;
    // Labels name the stage when a worker has several stages. Where such labels are too wide, the
    // micro-batches alone still show the shape.
    with_stage_ = !one_stage_each();
    scale_ = label_scale();
    const double needed = width();  // with full labels
    if (!fits() && std::exchange(with_stage_, false)) scale_ = label_scale();
    const bool labelled = fits();
    if (!labelled) scale_ = std::max(1.0, room()) / timeline_.makespan;
    std::string text;
    const auto& rows = timeline_.order;
    const auto draw_any = [&](const std::string& name, std::span<const JobId> jobs) {
      labelled ? draw_row(name, jobs, text) : draw_scaled_row(name, jobs, text);
    };
    for (std::size_t w = 0; w < rows.size(); ++w) {
      draw_any(fmt::format("worker {}", w), rows[w]);
      const int worker = static_cast<int>(w);
      if (schedule_.copies_of(worker).empty()) continue;
      draw_any("  out", schedule_.copies_of(worker, Channel::out));
      draw_any("  in", schedule_.copies_of(worker, Channel::in));
    }
    draw_axis(text);
    const std::string unit = unit_.name().empty() ? "" : "; time in " + unit_.name();
    text += fmt::format("{:{}}{}{}\n", "", gutter_, labelled ? key() : scaled_key(), unit);
    if (!labelled && needed < 1e6) {
      text += fmt::format("{:{}}scaled; {:.0f} columns name every job\n", "", gutter_, needed);
    }
    return text;
  }

 private:
  [[nodiscard]] bool one_stage_each() const {
    for (int w = 0; w < schedule_.workers(); ++w) {
      int stage = -1;
      for (const JobId id : schedule_.order(w)) {
        const Span span = timeline_.spans[id];
        if (!(span.end > span.start)) continue;  // a job of zero length is not drawn
        if (stage >= 0 && schedule_.job(id).stage != stage) return false;
        stage = schedule_.job(id).stage;
      }
    }
    return true;
  }

  [[nodiscard]] std::string label(const Job& job) const {
    return with_stage_ ? fmt::format("{}{}.{}", to_string(job.pass), schedule_.graph().label(job.stage),
                                     job.microbatch)
                       : fmt::format("{}{}", to_string(job.pass), job.microbatch);
  }

  [[nodiscard]] std::string key() const {
    const std::string copies = schedule_.copies() ? "; O and L: copies of stashes" : "";
    if (!with_stage_) return "F5: pass F of micro-batch 5; . idle" + copies;
    return (schedule_.graph().shards().empty()
                ? "F2.5: pass F of stage 2, micro-batch 5; . idle"
                : "F2a.5: pass F of stage 2, a first shard (b: a second), micro-batch 5; . idle") +
           copies;
  }

  [[nodiscard]] std::string scaled_key() const {
    return fmt::format("a column is {:.3g}: its longest pass, B also for BW; . idle",
                       unit_.factor() / scale_);
  }

  [[nodiscard]] double room() const {
    return static_cast<double>(options_.columns) - static_cast<double>(gutter_);
  }
  [[nodiscard]] double width() const {
    return static_cast<double>(gutter_) + std::ceil(scale_ * timeline_.makespan - 1e-6);
  }
  [[nodiscard]] bool fits() const { return scale_ * timeline_.makespan <= room(); }

  /// Returns the smallest scale (columns per unit of time) at which every label fits.
  [[nodiscard]] double label_scale() const {
    const auto step = common_step(schedule_, timeline_, origin_);
    double scale = 0;
    for (const JobId id : schedule_.order()) {
      const Span span = timeline_.spans[id];
      const double time = span.end - span.start;
      if (!(time > 0)) continue;  // a job of zero length has no cell
      const auto need = static_cast<double>(label(schedule_.job(id)).size() + 1);
      // Without a common step, rounding of start and end may take a column away.
      scale = std::max(scale, step ? std::ceil(need / std::round(time / *step)) / *step : (need + 1) / time);
    }
    return scale;
  }

  [[nodiscard]] std::size_t column(double time) const {
    return static_cast<std::size_t>(std::lround((time - origin_) * scale_));
  }

  void draw_row(const std::string& name, std::span<const JobId> jobs, std::string& text) const {
    text += fmt::format("{:<{}}", name, gutter_);
    std::size_t at = 0;
    const auto idle_to = [&](std::size_t until) {
      if (until <= at) return;
      text += options_.colour ? fmt::format("\x1b[2m{:.>{}}\x1b[0m", "", until - at)
                              : fmt::format("{:.>{}} ", "", until - at - 1);
      at = until;
    };
    for (const JobId id : jobs) {
      const Span span = timeline_.spans[id];
      const std::size_t to = column(span.end);
      idle_to(column(span.start));
      if (to <= at) continue;
      const Job job = schedule_.job(id);
      const std::string cell = label(job);
      text += options_.colour ? paint(fmt::format("{:<{}}", cell, to - at), job)
                              : fmt::format("{:=<{}} ", cell, to - at - 1);
      at = to;
    }
    idle_to(column(origin_ + timeline_.makespan));
    while (!text.empty() && text.back() == ' ') text.pop_back();
    text += '\n';
  }

  /// Draws one character per column: the pass that takes the longest in it, or a dot if the worker is idle
  /// for longer.
  void draw_scaled_row(const std::string& name, std::span<const JobId> jobs, std::string& text) const {
    struct Share {
      double time = 0;
      JobId job = 0;
    };
    const auto columns = static_cast<std::size_t>(std::lround(timeline_.makespan * scale_));
    std::vector<std::array<Share, pass_count>> shares(columns);
    std::vector<double> busy(columns, 0);
    for (const JobId id : jobs) {
      const double from = (timeline_.spans[id].start - origin_) * scale_;
      const double to = (timeline_.spans[id].end - origin_) * scale_;
      for (auto c = static_cast<std::size_t>(from); c < columns && static_cast<double>(c) < to; ++c) {
        const double time = std::min(to, static_cast<double>(c + 1)) - std::max(from, static_cast<double>(c));
        Share& share = shares[c][index(schedule_.job(id).pass)];
        if (share.time == 0) share.job = id;
        share.time += time;
        busy[c] += time;
      }
    }
    text += fmt::format("{:<{}}", name, gutter_);
    for (std::size_t c = 0; c < columns; ++c) {
      const Share& max = *std::ranges::max_element(shares[c], {}, &Share::time);
      if (1 - busy[c] > max.time) {
        text += options_.colour ? "\x1b[2m.\x1b[0m" : ".";
        continue;
      }
      const Job job = schedule_.job(max.job);
      const std::string letter(to_string(job.pass).substr(0, 1));
      text += options_.colour ? paint(letter, job) : letter;
    }
    text += '\n';
  }

  void draw_axis(std::string& text) const {
    // A tick about every 12 columns, but no closer than 0.7 times that.
    const double step = tick_step(0.7 * 12 / scale_ * unit_.factor()) / unit_.factor();
    std::string line(gutter_, ' ');
    for (int tick = 0; tick * step <= timeline_.makespan * (1 + 1e-9); ++tick) {
      const std::size_t at = gutter_ + column(origin_ + tick * step);
      const std::string number = unit_.number(tick * step);
      if (tick > 0 && (at < line.size() || at + number.size() > index(options_.columns))) continue;
      line.resize(at, ' ');
      line += number + " ";
    }
    while (line.back() == ' ') line.pop_back();
    text += line + '\n';
  }

  const Schedule& schedule_;
  const Timeline& timeline_;
  const TextOptions& options_;
  double origin_;
  std::size_t gutter_;
  ShownUnit unit_;
  bool with_stage_ = false;
  double scale_ = 1;
};

std::string summary(const Schedule& schedule, const Timeline& timeline, const ShownUnit& unit) {
  const auto workers = index(schedule.workers());
  std::vector<TableRow> rows(workers + 1);  // the headings, and a row per worker
  // Adds a column. Unless it is shown `always`, it is left out when all of its cells are 0.
  const auto add = [&](const std::string& head, bool always, auto cell) {
    std::vector<std::string> cells;
    for (std::size_t w = 0; w < workers; ++w) cells.push_back(cell(w));
    if (!always && std::ranges::count(cells, "0") == schedule.workers()) return;
    rows.front().push_back(head);
    for (std::size_t w = 0; w < workers; ++w) rows[w + 1].push_back(std::move(cells[w]));
  };
  add("worker", true, [](std::size_t w) { return std::to_string(w); });
  add(unit.heading("busy"), true, [&](std::size_t w) { return unit.number(timeline.busy[w]); });
  add("peak stashes", true, [&](std::size_t w) { return std::to_string(timeline.peak_stashes[w]); });
  if (!schedule.memory_limits().empty())
    add("limit", true, [&](std::size_t w) { return std::to_string(schedule.memory_limits()[w]); });
  for (const TransferKind& kind : transfer_kinds) {
    add(fmt::format("{} in", kind.label), kind.always_shown,
        [&](std::size_t w) { return std::to_string((timeline.received[w].*kind.member).count); });
  }
  return makespan_text(timeline, [&](double time) { return unit.text(time); }) + '\n' + table_text(rows);
}

}  // namespace

std::string makespan_text(const Timeline& timeline, const std::function<std::string(double)>& time_text) {
  std::string text = fmt::format("makespan                       {}\n", time_text(timeline.makespan));
  if (timeline.gradients_summed)
    text += fmt::format("with gradients summed          {}\n", time_text(*timeline.gradients_summed));
  text += fmt::format("bubble fraction, by makespan   {}\n", percent_text(timeline.bubble_fraction));
  if (timeline.recomputed_fraction > 0)
    text += fmt::format("recomputation, by makespan     {}\n", percent_text(timeline.recomputed_fraction));
  return text + fmt::format(
                    "device span                    {}\n"
                    "bubble fraction, device span   {}\n",
                    time_text(timeline.device_span), percent_text(timeline.device_bubble_fraction));
}

std::string makespan_sentence(const Timeline& timeline, std::string_view makespan) {
  return fmt::format("makespan {}, bubble fraction {} by makespan, {} by device span", makespan,
                     percent_text(timeline.bubble_fraction), percent_text(timeline.device_bubble_fraction));
}

std::string describe_homes(const Schedule& schedule) {
  return fmt::format("{}{}", schedule.recomputes() ? ", with recomputation" : "",
                     schedule.copies() ? ", with copies of stashes" : "");
}

std::string schedule_text(const Schedule& schedule, const Timeline& timeline, const TextOptions& options) {
  std::string text = fmt::format("{}: {} workers, {} stages, {}, {}{}\n\n", schedule.name(),
                                 schedule.workers(), schedule.stages(), microbatches_text(schedule),
                                 to_string(schedule.discipline()), describe_homes(schedule));
  if (const auto drawing = Drawing(schedule, timeline, options).draw()) {
    text += *drawing;
  } else {
    text += "(nothing to draw: no pass takes time)\n";
  }
  return text + '\n' + summary(schedule, timeline, ShownUnit(options.unit, timeline.makespan));
}

ShownUnit::ShownUnit(const std::string& unit, double longest) : name_(unit) {
  if (unit != "s" || longest <= 0 || longest >= 1) return;
  name_ = longest < 1e-3 ? "µs" : "ms";
  factor_ = longest < 1e-3 ? 1e6 : 1e3;
}

std::string ShownUnit::number(double time) const { return number_text(time * factor_); }

std::string ShownUnit::text(double time) const {
  return name_.empty() ? number(time) : number(time) + " " + name_;
}

std::string ShownUnit::heading(const std::string& heading) const {
  return name_.empty() ? heading : heading + " (" + name_ + ")";
}

}  // namespace starpipe::plan
