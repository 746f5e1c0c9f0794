// SPDX-License-Identifier: Apache-2.0
#include "plan/drawing/timeline_svg.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <string_view>

#include <fmt/format.h>

#include "base/numbers.hpp"
#include "plan/drawing/svg_parts.hpp"
#include "plan/drawing/svg_text.hpp"
#include "plan/simulate/memory_over_time.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/drawing/schedule_text.hpp"

namespace starpipe::plan {
namespace {

constexpr double left_margin = 92;
constexpr double right_margin = 24;
constexpr double row_gap = 3;
constexpr double title_height = 34;
constexpr double run_gap = 18;
constexpr std::size_t max_jobs = 10'000;  // an image of more takes viewers too long

class Svg {
 public:
  Svg(std::span<const SvgRun> runs, const SvgOptions& options)
      : runs_(runs), width_(std::max(options.width, 400)), memory_(options.memory) {
    std::size_t rows = 0;
    for (const SvgRun& run : runs) {
      makespan_ = std::max(makespan_, run.timeline->makespan);
      rows = std::max(rows, index(run.schedule->workers()));
      microbatches_ = std::max(microbatches_, run.schedule->microbatches());
      for (const IdlePart& part : run.idle) causes_[index(part.cause)] = true;
      plain_idle_ = plain_idle_ || run.idle.empty();
      for (const JobId id : run.schedule->order()) {
        passes_[index(run.schedule->job(id).pass)] = true;
      }
    }
    unit_ = ShownUnit(options.unit, makespan_);
    row_height_ = std::clamp(720.0 / static_cast<double>(std::max<std::size_t>(rows, 1)), 8.0, 32.0);
    scale_ = makespan_ > 0 ? (width_ - left_margin - right_margin) / makespan_ : 1;
  }

  std::string draw() {
    double y = 8;
    for (const SvgRun& run : runs_) y = draw_run(run, y) + run_gap;
    if (!runs_.empty()) y -= run_gap;
    y = draw_legend(draw_axis(y));
    const std::string height = px(y + 12);
    return fmt::format(
               "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" "
               "viewBox=\"0 0 {0} {1}\" font-family=\"Helvetica, Arial, 'Liberation Sans', "
               "'DejaVu Sans', sans-serif\">\n",
               width_, height) +
           defs() + fmt::format("<rect width=\"{}\" height=\"{}\" fill=\"#ffffff\"/>\n", width_, height) +
           body_ + "</svg>\n";
  }

 private:
  template <class... Args>
  void put(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(body_), format, std::forward<Args>(args)...);
  }

  void put_text(double x, double y, double size, const char* fill, std::string_view text,
                const char* extra = "") {
    plan::put_text(x, y, size, fill, text, body_, extra);
  }

  [[nodiscard]] std::string defs() const {
    std::string text = "<defs>\n";
    text +=
        "<pattern id=\"idle\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" "
        "patternTransform=\"rotate(45)\"><rect width=\"6\" height=\"6\" fill=\"#f4f5f6\"/>"
        "<rect width=\"1.5\" height=\"6\" fill=\"#e3e6e9\"/></pattern>\n";
    if (std::ranges::find(causes_, true) != causes_.end()) text += idle_patterns();
    return text + "</defs>\n";
  }

  double draw_run(const SvgRun& run, double y) {
    const Schedule& schedule = *run.schedule;
    const Timeline& timeline = *run.timeline;
    const std::string figures = makespan_sentence(timeline, unit_.text(timeline.makespan));
    put("<text x=\"{}\" y=\"{}\" font-size=\"15\" fill=\"{}\"><tspan font-weight=\"bold\">{}</tspan>"
        "<tspan dx=\"14\" font-size=\"13\" fill=\"{}\">{}</tspan></text>\n",
        px(16), px(y + 18), ink, escape(run.title), faint_ink, escape(figures));
    y += title_height - 6;

    const auto& rows = timeline.order;
    const RunFrame frame = {.left = left_margin,
                            .top = y,
                            .origin = first_start(timeline),
                            .scale = scale_,
                            .row_height = row_height_,
                            .row_pitch = row_height_ + (row_height_ > 12 ? row_gap : 1)};
    const double label_size = std::clamp(row_height_ * 0.7, 7.0, 12.0);
    for (std::size_t w = 0; w < rows.size(); ++w) {
      const double top = frame.y(w);
      put_text(left_margin - 10, top + row_height_ / 2 + label_size * 0.36, label_size, faint_ink,
               fmt::format("worker {}", w), " text-anchor=\"end\"");
      put("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"url(#idle)\"/>\n", px(left_margin),
          px(top), px(timeline.makespan * scale_), px(row_height_));
    }
    draw_idle(run.idle, schedule, frame, unit_, body_);
    draw_cells(schedule, timeline, frame);
    draw_chunks(schedule, timeline, frame);
    draw_labels(schedule, timeline, frame);
    path_ = draw_critical_path(run.path, schedule, frame, body_) || path_;
    return draw_memory(schedule, timeline, frame, frame.y(rows.size()));
  }

  /// Draws lines at the foot of each cell: as many as the worker has stages before the job's stage.
  void draw_chunks(const Schedule& schedule, const Timeline& timeline, const RunFrame& frame) {
    const auto& rows = timeline.order;
    std::string path;
    for (std::size_t w = 0; w < rows.size(); ++w) {
      std::vector<int> stages;
      for (const JobId id : rows[w]) stages.push_back(schedule.job(id).stage);
      std::sort(stages.begin(), stages.end());
      stages.erase(std::unique(stages.begin(), stages.end()), stages.end());
      foot_lines_ = std::max(foot_lines_, static_cast<int>(stages.size()) - 1);
      for (const JobId id : rows[w]) {
        const auto before = std::lower_bound(stages.begin(), stages.end(), schedule.job(id).stage);
        const double x = frame.x(timeline.spans[id].start);
        const double width = (timeline.spans[id].end - timeline.spans[id].start) * scale_ - 1;
        for (auto line = stages.begin(); line != before && width > 1; ++line) {
          const double foot = frame.y(w) + row_height_ - 2.5 - 3 * static_cast<double>(line - stages.begin());
          fmt::format_to(std::back_inserter(path), "M{} {}h{}", px(x + 1), px(foot), px(width - 2));
        }
      }
    }
    if (path.empty()) return;
    put("<path class=\"chunks\" d=\"{}\" stroke=\"{}\" stroke-width=\"1.6\" fill=\"none\"/>\n", path, ink);
  }

  /// Draws the live stashes of each worker over time, on one scale, with the peaks as numbers. Returns the y
  /// below the drawing.
  double draw_memory(const Schedule& schedule, const Timeline& timeline, const RunFrame& frame, double y) {
    if (!memory_ || timeline.peak_stashes.empty()) return y;
    const double height = std::clamp(row_height_ * 0.55, 5.0, 16.0);
    const int max =
        std::max(1, *std::max_element(timeline.peak_stashes.begin(), timeline.peak_stashes.end()));
    const double unit = height / max;
    const auto live = memory_over_time(schedule, Costs{}, timeline);
    y += 6;
    for (std::size_t w = 0; w < live.size(); ++w, y += height + 4) {
      put_text(left_margin - 10, y + height, std::clamp(height, 7.0, 11.0), faint_ink,
               fmt::format("holds {}", timeline.peak_stashes[w]), " text-anchor=\"end\"");
      if (live[w].empty()) continue;
      std::string path = fmt::format("M{} {}", px(frame.x(live[w].front().time)), px(y + height));
      for (const MemoryStep& step : live[w]) {
        fmt::format_to(std::back_inserter(path), "H{}V{}", px(frame.x(step.time)),
                       px(y + height - step.stashes * unit));
      }
      put("<path class=\"memory\" d=\"{}\" fill=\"#b6bec8\"/>\n", path);
    }
    return y;
  }

  void draw_cells(const Schedule& schedule, const Timeline& timeline, const RunFrame& frame) {
    const auto& rows = timeline.order;
    // Cells are grouped by look and hue, so that each group states its paint once.
    std::array<std::string, looks * palette.size()> groups;
    for (std::size_t w = 0; w < rows.size(); ++w) {
      for (const JobId id : rows[w]) {
        const Job job = schedule.job(id);
        std::string& group = groups[index(look_of(job.pass)) * palette.size() + hue_of(job.microbatch)];
        draw_cell(job, w, timeline.spans[id], frame, group);
      }
    }
    for (std::size_t g = 0; g < groups.size(); ++g) {
      if (groups[g].empty()) continue;
      put("<g class=\"jobs\" {}>\n{}</g>\n", paint(static_cast<Look>(g / palette.size()), g % palette.size()),
          groups[g]);
    }
  }

  void draw_cell(const Job& job, std::size_t worker, const Span& span, const RunFrame& frame,
                 std::string& group) const {
    const double width = (span.end - span.start) * scale_;
    // Cells are separated by a light seam. An outline lies on the border, so W is drawn half a pixel smaller.
    const double seam = std::min(width > 6 ? 1.0 : 0.4, width / 4);
    const double inset = look_of(job.pass) == Look::outlined ? std::min(0.5, width / 4) : 0;
    fmt::format_to(std::back_inserter(group),
                   "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"{}><title>{} on worker {}, {} to "
                   "{}</title></rect>\n",
                   px(frame.x(span.start) + inset), px(frame.y(worker) + inset),
                   px(std::max(0.0, width - seam - 2 * inset)), px(row_height_ - 2 * inset),
                   width > 12 ? " rx=\"2\"" : "", to_string(job), worker, unit_.number(span.start),
                   unit_.number(span.end));
  }

  void draw_labels(const Schedule& schedule, const Timeline& timeline, const RunFrame& frame) {
    const auto& rows = timeline.order;
    const JobLabels labels(schedule, timeline, scale_, row_height_);
    std::array<std::string, looks * palette.size()> groups;
    for (std::size_t w = 0; w < rows.size(); ++w) {
      for (const JobId id : rows[w]) {
        const Job job = schedule.job(id);
        const Span span = timeline.spans[id];
        std::string& group = groups[index(look_of(job.pass)) * palette.size() + hue_of(job.microbatch)];
        const double x = left_margin + (span.start + span.end - 2 * frame.origin) / 2 * scale_ - 0.5;
        const JobLabels::Drawn drawn = labels.draw(id, x, frame.y(w), group);
        any_label_ = any_label_ || drawn == JobLabels::Drawn::stage_and_microbatch;
        any_number_ = any_number_ || drawn == JobLabels::Drawn::microbatch;
      }
    }
    for (std::size_t g = 0; g < groups.size(); ++g) {
      if (groups[g].empty()) continue;
      put("<g class=\"labels\" text-anchor=\"middle\" fill=\"{}\">\n{}</g>\n",
          text_fill(static_cast<Look>(g / palette.size()), g % palette.size()), groups[g]);
    }
  }

  double draw_axis(double y) {
    y += 4;
    const double right = left_margin + makespan_ * scale_;
    put("<path d=\"M{} {}H{}\" stroke=\"{}\" fill=\"none\"/>\n", px(left_margin), px(y), px(right),
        faint_ink);
    if (makespan_ > 0) {
      const double range = makespan_ * unit_.factor();
      const double step = tick_step(range / std::max(4.0, (right - left_margin) / 80));
      for (int i = 0; i * step <= range * (1 + 1e-9); ++i) {
        const double x = left_margin + i * step / unit_.factor() * scale_;
        put("<path d=\"M{} {}v5\" stroke=\"{}\"/>\n", px(x), px(y), faint_ink);
        put_text(x, y + 18, 11, faint_ink, number_text(i * step), " text-anchor=\"middle\"");
      }
    }
    put_text(left_margin - 10, y + 18, 11, faint_ink, unit_.heading("time"), " text-anchor=\"end\"");
    return y + 28;
  }

  double draw_legend(double y) {
    const LegendItems items = {.passes = passes_,
                               .plain_idle = plain_idle_,
                               .causes = causes_,
                               .critical_path = path_,
                               .memory = memory_,
                               .labels = any_label_,
                               .two_line_labels = JobLabels::two_lines(row_height_),
                               .numbers = any_number_,
                               .foot_lines = foot_lines_,
                               .microbatches = microbatches_};
    return plan::draw_legend(items, left_margin, width_ - right_margin, y, body_);
  }

  std::span<const SvgRun> runs_;
  int width_;
  ShownUnit unit_{"", 0};
  double makespan_ = 0;
  double scale_ = 1;  ///< pixels per unit
  double row_height_ = 0;
  int microbatches_ = 0;
  std::array<bool, pass_count> passes_ = {};
  std::array<bool, idle_cause_count> causes_ = {};  ///< of idle time that is drawn
  bool plain_idle_ = false;                         ///< some run has no causes
  bool path_ = false;                               ///< some run's critical path is drawn
  bool memory_;
  int foot_lines_ = 0;       ///< the maximum number of lines at the foot of a cell: a worker's stages but one
  bool any_label_ = false;   ///< some cell says "F2"
  bool any_number_ = false;  ///< some cell's label is the micro-batch alone
  std::string body_;
};

}  // namespace

void require_drawable(std::size_t jobs) {
  if (jobs <= max_jobs) return;
  throw InputError(
      fmt::format("timeline: an SVG image has at most {} jobs, and these runs have {}; the page that --html "
                  "writes has room for more",
                  max_jobs, jobs));
}

std::string timeline_svg(std::span<const SvgRun> runs, const SvgOptions& options) {
  std::size_t jobs = 0;
  for (const SvgRun& run : runs) jobs += run.schedule->job_count();
  require_drawable(jobs);
  return Svg(runs, options).draw();
}

SvgRun explained_run(const std::string& title, const RecordedStep& step) {
  return {.title = title,
          .schedule = &step.as_run,
          .timeline = &step.timeline,
          .idle = idle_parts(step),
          .path = critical_path(step)};
}

}  // namespace starpipe::plan
