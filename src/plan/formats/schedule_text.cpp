// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/formats/schedule_text.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "plan/formats/axis.hpp"
#include "plan/formats/palette.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/base/numbers.hpp"
#include "starpipe/base/table.hpp"

namespace starpipe::plan {
namespace {

std::string paint(std::string text, const Job& job) {
  const detail::Hue& hue = detail::palette[detail::hue_of(job.microbatch)];
  switch (job.pass) {
    case Pass::F:
      return fmt::format("\x1b[38;5;16;48;5;{}m{}\x1b[0m", hue.light_code, text);
    case Pass::B:
    case Pass::BW:
      return fmt::format("\x1b[38;5;231;48;5;{}m{}\x1b[0m", hue.dark_code, text);
    case Pass::W:
      return fmt::format("\x1b[7;38;5;{};48;5;16m{}\x1b[0m", hue.light_code, text);
  }
  return text;
}

/// The largest step such that all starts and ends are multiples of it. Nothing when that is below a
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
        gutter_(fmt::formatted_size("worker {} ", schedule.workers() - 1)) {}

  /// The drawing, or nothing when the terminal is too narrow.
  std::optional<std::string> draw() {
    // Labels name the stage when a worker has several stages. Where such labels are too wide, the
    // micro-batches alone still show the shape.
    with_stage_ = !one_stage_each();
    if (!choose_scale()) {
      if (!std::exchange(with_stage_, false) || !choose_scale()) return std::nullopt;
    }
    std::string text;
    const auto& rows = timeline_.order;
    for (std::size_t w = 0; w < rows.size(); ++w) draw_row(w, rows[w], text);
    draw_axis(text);
    text += fmt::format("{:{}}{}\n", "", gutter_,
                        with_stage_ ? "F2.5: pass F of stage 2, micro-batch 5; . idle"
                                    : "F5: pass F of micro-batch 5; . idle");
    return text;
  }

 private:
  [[nodiscard]] bool one_stage_each() const {
    for (int w = 0; w < schedule_.workers(); ++w) {
      const auto order = schedule_.order(w);
      if (order.empty()) continue;
      const int stage = schedule_.job(order.front()).stage;
      for (const JobId id : order) {
        if (schedule_.job(id).stage != stage) return false;
      }
    }
    return true;
  }

  [[nodiscard]] std::string label(const Job& job) const {
    return with_stage_ ? fmt::format("{}{}.{}", to_string(job.pass), job.stage, job.microbatch)
                       : fmt::format("{}{}", to_string(job.pass), job.microbatch);
  }

  /// Sets the smallest scale (columns per unit of time) at which every label fits. False when the drawing
  /// would then be wider than the terminal.
  bool choose_scale() {
    if (!(timeline_.makespan > 0)) return false;
    const auto room = static_cast<double>(options_.columns) - static_cast<double>(gutter_);
    const auto step = common_step(schedule_, timeline_, origin_);
    scale_ = 0;
    for (const JobId id : schedule_.order()) {
      const Span span = timeline_.spans[id];
      const double time = span.end - span.start;
      if (!(time > 0)) continue;  // a job of zero length has no cell
      const auto need = static_cast<double>(label(schedule_.job(id)).size() + 1);
      // Without a common step, rounding of start and end may take a column away.
      scale_ =
          std::max(scale_, step ? std::ceil(need / std::round(time / *step)) / *step : (need + 1) / time);
      if (scale_ * timeline_.makespan > room) return false;
    }
    return true;
  }

  [[nodiscard]] std::size_t column(double time) const {
    return static_cast<std::size_t>(std::lround((time - origin_) * scale_));
  }

  void draw_row(std::size_t worker, const std::vector<JobId>& jobs, std::string& text) const {
    text += fmt::format("{:<{}}", fmt::format("worker {}", worker), gutter_);
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
      const std::string name = label(job);
      text += options_.colour ? paint(fmt::format("{:<{}}", name, to - at), job)
                              : fmt::format("{:=<{}} ", name, to - at - 1);
      at = to;
    }
    idle_to(column(origin_ + timeline_.makespan));
    while (!text.empty() && text.back() == ' ') text.pop_back();
    text += '\n';
  }

  void draw_axis(std::string& text) const {
    // A tick about every 12 columns, but no closer than 0.7 times that.
    const double step = detail::tick_step(0.7 * 12 / scale_);
    std::string line(gutter_, ' ');
    for (int tick = 0; tick * step <= timeline_.makespan * (1 + 1e-9); ++tick) {
      const std::size_t at = gutter_ + column(origin_ + tick * step);
      if (at < line.size() && tick > 0) continue;
      line.resize(at, ' ');
      line += number_text(tick * step) + " ";
    }
    while (line.back() == ' ') line.pop_back();
    text += line + '\n';
  }

  const Schedule& schedule_;
  const Timeline& timeline_;
  const TextOptions& options_;
  double origin_;
  std::size_t gutter_;
  bool with_stage_ = false;
  double scale_ = 1;
};

std::string percent(double fraction) { return fmt::format("{:.1f} %", std::max(0.0, fraction) * 100); }

std::string summary(const Schedule& schedule, const Timeline& timeline) {
  const auto workers = index(schedule.workers());
  std::vector<TableRow> rows(workers + 1);  // the headings, and a row a worker
  // Adds a column. Unless it is shown `always`, it is left out when all of its cells are 0.
  const auto add = [&](const std::string& head, auto cell, bool always) {
    std::vector<std::string> cells;
    for (std::size_t w = 0; w < workers; ++w) cells.push_back(cell(w));
    if (!always && std::ranges::all_of(cells, [](const std::string& number) { return number == "0"; }))
      return;
    rows.front().push_back(head);
    for (std::size_t w = 0; w < workers; ++w) rows[w + 1].push_back(std::move(cells[w]));
  };
  add(
      "worker", [](std::size_t w) { return std::to_string(w); }, true);
  add(
      "busy", [&](std::size_t w) { return number_text(timeline.busy[w]); }, true);
  add(
      "peak activations", [&](std::size_t w) { return std::to_string(timeline.peak_stashes[w]); }, true);
  if (!schedule.memory_limits().empty()) {
    add(
        "limit", [&](std::size_t w) { return std::to_string(schedule.memory_limits()[w]); }, true);
  }
  for (const TransferKind& kind : transfer_kinds) {
    add(
        fmt::format("{} in", kind.label),
        [&](std::size_t w) { return std::to_string((timeline.received[w].*kind.member).count); },
        kind.always_shown);
  }
  return makespan_text(timeline, number_text) + '\n' + table_text(rows);
}

}  // namespace

std::string makespan_text(const Timeline& timeline, const std::function<std::string(double)>& time_text) {
  return fmt::format(
      "makespan                       {}\n"
      "bubble fraction, by makespan   {}\n"
      "device span                    {}\n"
      "bubble fraction, device span   {}\n",
      time_text(timeline.makespan), percent(timeline.bubble_fraction), time_text(timeline.device_span),
      percent(timeline.device_bubble_fraction));
}

std::string schedule_text(const Schedule& schedule, const Timeline& timeline, const TextOptions& options) {
  std::string text =
      fmt::format("{}: {} workers, {} stages, {} micro-batches, {}{}\n\n", schedule.name(),
                  schedule.workers(), schedule.stages(), schedule.microbatches(),
                  to_string(schedule.discipline()), schedule.recompute() ? ", with recomputation" : "");
  if (const auto drawing = Drawing(schedule, timeline, options).draw()) {
    text += *drawing;
  } else {
    text += fmt::format("(too wide to draw in {} columns; try the svg or trace format)\n", options.columns);
  }
  return text + '\n' + summary(schedule, timeline);
}

}  // namespace starpipe::plan
