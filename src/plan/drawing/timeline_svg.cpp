// SPDX-License-Identifier: Apache-2.0
#include "plan/drawing/timeline_svg.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <set>
#include <string_view>

#include <fmt/format.h>

#include "base/numbers.hpp"
#include "plan/drawing/svg_parts.hpp"
#include "plan/simulate/memory_over_time.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::plan {
namespace {

constexpr int image_width = 1200;
constexpr double left_margin = 92;
constexpr double right_margin = 24;
constexpr double row_gap = 3;
constexpr double title_height = 34;
constexpr double run_gap = 18;
constexpr std::size_t max_svg_jobs = 10'000;  // an image of more takes viewers too long

/// The labels of a run's jobs: stage and micro-batch, or the micro-batch alone. All jobs of one pass share a
/// style, so that they read as one kind.
class JobLabels {
 public:
  explicit JobLabels(const RunFrame& frame) : frame_(frame), schedule_(*frame.run.schedule) {
    for (std::size_t pass = 0; pass < pass_count; ++pass) styles_[pass] = style_of(static_cast<Pass>(pass));
  }

  enum class Drawn { nothing, stage_and_microbatch, microbatch };
  /// Adds the label of job `id`, if its cell has room, as text centred on `x` in the row that begins at `y`.
  Drawn draw(JobId id, double x, double y, std::string& svg) const {
    const Style style = styles_[index(schedule_.job(id).pass)];
    if (style.size == 0 || !fits(id, style)) return Drawn::nothing;
    const double size = style.size;
    const double middle = y + frame_.row_height / 2;
    const auto line = [&](double baseline, double font, const std::string& text) {
      fmt::format_to(std::back_inserter(svg), "<text x=\"{}\" y=\"{}\" font-size=\"{}\">{}</text>\n", px(x),
                     px(baseline), px(font), text);
    };
    if (style.numbers) {
      line(middle + size * 0.36, size, microbatch(id));
      return Drawn::microbatch;
    }
    if (two_lines(frame_.row_height)) {
      line(middle - 2, size, pass_and_stage(id));
      line(middle + 10, std::min(size, 10.0), microbatch(id));
    } else {
      const bool both = text_width(pass_and_stage(id) + " " + microbatch(id), size) + 6 <= width(id);
      line(middle + size * 0.36, size, pass_and_stage(id) + (both ? " · " + microbatch(id) : ""));
    }
    return Drawn::stage_and_microbatch;
  }

  /// True if rows of this height have the micro-batch in a line of its own.
  [[nodiscard]] static bool two_lines(double row_height) { return row_height >= 25; }

 private:
  struct Style {
    double size = 0;       // of the font, in pixels; 0 for no label
    bool numbers = false;  // the label is the micro-batch alone, for lack of room
  };

  [[nodiscard]] std::string pass_and_stage(JobId id) const {
    const Job job = schedule_.job(id);
    return fmt::format("{}{}", to_string(job.pass), schedule_.graph().label(job.stage));
  }
  [[nodiscard]] std::string microbatch(JobId id) const {
    return std::to_string(schedule_.job(id).microbatch);
  }

  [[nodiscard]] double width(JobId id) const {
    const Span span = frame_.run.timeline->spans[id];
    return (span.end - span.start) * frame_.scale;
  }
  [[nodiscard]] bool fits(JobId id, Style style) const {
    return text_width(style.numbers ? microbatch(id) : pass_and_stage(id), style.size) <= width(id) - 2;
  }

  // Returns the richest and largest style that most jobs of `pass` have room for.
  [[nodiscard]] Style style_of(Pass pass) const {
    std::vector<JobId> jobs;
    std::ranges::copy_if(schedule_.order(), std::back_inserter(jobs),
                         [&](JobId id) { return schedule_.job(id).pass == pass; });
    for (const bool numbers : {false, true}) {
      for (const double size : {12.0, 11.0, 10.0, 9.0, 8.0}) {
        const Style style{size, numbers};
        if (size > frame_.row_height - 3 || (numbers && size > 10)) continue;
        const auto fit = std::ranges::count_if(jobs, [&](JobId id) { return fits(id, style); });
        if (static_cast<std::size_t>(fit) * 10 >= jobs.size() * 8) return style;
      }
    }
    return {};
  }

  const RunFrame& frame_;
  const Schedule& schedule_;
  std::array<Style, pass_count> styles_ = {};  // by pass
};

class Svg {
 public:
  Svg(std::span<const DrawnRun> runs, const SvgOptions& options)
      : runs_(runs), legend_{.memory = options.memory} {
    std::size_t rows = 0;
    for (const DrawnRun& run : runs) {
      makespan_ = std::max(makespan_, run.timeline->makespan);
      rows = std::max(rows, index(run.schedule->workers()));
      legend_.microbatches = std::max(legend_.microbatches, run.schedule->microbatches());
      for (const IdlePart& part : run.idle) legend_.causes[index(part.cause)] = true;
      legend_.plain_idle = legend_.plain_idle || run.idle.empty();
      for (const JobId id : run.schedule->order()) legend_.passes[index(run.schedule->job(id).pass)] = true;
    }
    unit_ = ShownUnit(options.unit, makespan_);
    row_height_ = std::clamp(720.0 / static_cast<double>(std::max<std::size_t>(rows, 1)), 8.0, 32.0);
    legend_.two_line_labels = JobLabels::two_lines(row_height_);
    scale_ = makespan_ > 0 ? (image_width - left_margin - right_margin) / makespan_ : 1;
  }

  std::string draw() {
    double y = 8;
    for (const DrawnRun& run : runs_) y = draw_run(run, y) + run_gap;
    if (!runs_.empty()) y -= run_gap;
    y = draw_legend(legend_, left_margin, image_width - right_margin, draw_axis(y), body_);
    const std::string height = px(y + 12);
    return fmt::format(
               "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" "
               "viewBox=\"0 0 {0} {1}\" font-family=\"Helvetica, Arial, 'Liberation Sans', "
               "'DejaVu Sans', sans-serif\">\n",
               image_width, height) +
           idle_patterns(std::ranges::find(legend_.causes, true) != legend_.causes.end()) +
           fmt::format("<rect width=\"{}\" height=\"{}\" fill=\"#ffffff\"/>\n", image_width, height) + body_ +
           "</svg>\n";
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

  double draw_run(const DrawnRun& run, double y) {
    const Timeline& timeline = *run.timeline;
    const std::string figures = makespan_sentence(timeline, unit_.text(timeline.makespan));
    put("<text x=\"{}\" y=\"{}\" font-size=\"15\" fill=\"{}\"><tspan font-weight=\"bold\">{}</tspan>"
        "<tspan dx=\"14\" font-size=\"13\" fill=\"{}\">{}</tspan></text>\n",
        px(16), px(y + 18), ink, escape(run.title), faint_ink, escape(figures));
    y += title_height - 6;

    RunFrame frame = {.run = run,
                      .left = left_margin,
                      .top = y,
                      .origin = first_start(timeline),
                      .scale = scale_,
                      .row_height = row_height_,
                      .row_pitch = row_height_ + (row_height_ > 12 ? row_gap : 1),
                      .strip = run.schedule->copies() ? std::clamp(row_height_ * 0.2, 2.0, 6.0) : 0};
    frame.row_pitch += frame.strip > 0 ? 2 * frame.strip + 3 : 0;
    const double label_size = std::clamp(row_height_ * 0.7, 7.0, 12.0);
    for (std::size_t w = 0; w < timeline.order.size(); ++w) {
      const double top = frame.y(w);
      put_text(left_margin - 10, top + row_height_ / 2 + label_size * 0.36, label_size, faint_ink,
               fmt::format("worker {}", w), " text-anchor=\"end\"");
      put("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"url(#idle)\"/>\n", px(left_margin),
          px(top), px(timeline.makespan * scale_), px(row_height_));
    }
    draw_idle(frame, unit_, body_);
    draw_cells(frame);
    draw_copies(frame);
    draw_chunks(frame);
    draw_pairs(frame);
    draw_labels(frame);
    legend_.critical_path = draw_critical_path(frame, body_) || legend_.critical_path;
    return draw_memory(frame, frame.y(timeline.order.size()));
  }

  /// Draws copies as strips under the rows of their workers: what leaves above what comes in.
  void draw_copies(const RunFrame& frame) {
    const Schedule& schedule = *frame.run.schedule;
    if (!schedule.copies()) return;
    put("<g class=\"copies\">\n");
    for (int w = 0; w < schedule.workers(); ++w) {
      for (const JobId id : schedule.copies_of(w)) {
        const Job job = schedule.job(id);
        const Span span = frame.run.timeline->spans[id];
        put("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" {}><title>{} of worker {}, {} {}, {} to "
            "{}</title></rect>\n",
            px(frame.x(span.start)), px(frame.strip_y(index(w), schedule.channel(id, w))),
            px((span.end - span.start) * scale_), px(frame.strip),
            paint(look_of(job.pass), hue_of(job.microbatch)), to_string(job), schedule.compute(id),
            job.pass == Pass::O ? "to" : "from", to_string(schedule.home(job.stage, job.microbatch)),
            unit_.number(span.start), unit_.number(span.end));
      }
    }
    put("</g>\n");
  }

  /// Draws lines at the foot of each cell: as many as the worker has stages before the job's stage.
  void draw_chunks(const RunFrame& frame) {
    const auto& rows = frame.run.timeline->order;
    std::string path;
    for (std::size_t w = 0; w < rows.size(); ++w) {
      const auto stage_of = [&](JobId id) { return frame.run.schedule->job(id).stage; };
      std::set<int> stages;
      for (const JobId id : rows[w]) stages.insert(stage_of(id));
      legend_.foot_lines = std::max(legend_.foot_lines, static_cast<int>(stages.size()) - 1);
      for (const JobId id : rows[w]) {
        const Span& span = frame.run.timeline->spans[id];
        const double width = (span.end - span.start) * scale_ - 1;
        const auto lines = std::distance(stages.begin(), stages.find(stage_of(id)));
        for (int line = 0; line < lines && width > 1; ++line) {
          const double foot = frame.y(w) + row_height_ - 2.5 - 3 * static_cast<double>(line);
          fmt::format_to(std::back_inserter(path), "M{} {}h{}", px(frame.x(span.start) + 1), px(foot),
                         px(width - 2));
        }
      }
    }
    if (path.empty()) return;
    put("<path class=\"chunks\" d=\"{}\" stroke=\"{}\" stroke-width=\"1.6\" fill=\"none\"/>\n", path, ink);
  }

  /// Draws a line over the two jobs of each pair.
  void draw_pairs(const RunFrame& frame) {
    const Schedule& schedule = *frame.run.schedule;
    std::string path;
    for (const JobId id : schedule.order()) {
      const JobId last = schedule.last_of_pair(id);
      if (last == id) continue;
      const double from = frame.x(frame.run.timeline->spans[id].start);
      const double to = frame.x(frame.run.timeline->spans[last].end);
      fmt::format_to(std::back_inserter(path), "M{} {}h{}", px(from + 1.5),
                     px(frame.y(index(schedule.compute(id))) + 1.8), px(std::max(0.0, to - from - 4)));
    }
    if (path.empty()) return;
    legend_.pairs = true;
    put("<path class=\"pairs\" d=\"{}\" stroke=\"{}\" stroke-width=\"2\" fill=\"none\"/>\n", path, ink);
  }

  /// Draws the live stashes of each worker over time, on one scale, with the peaks as numbers. Returns the y
  /// below the drawing.
  double draw_memory(const RunFrame& frame, double y) {
    const Timeline& timeline = *frame.run.timeline;
    if (!legend_.memory || timeline.peak_stashes.empty()) return y;
    const double height = std::clamp(row_height_ * 0.55, 5.0, 16.0);
    const double unit = height / std::max(1, std::ranges::max(timeline.peak_stashes));
    const auto live = memory_over_time(*frame.run.schedule, Costs{}, timeline);
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

  /// Calls `draw(JobId, worker, group)` for each job, and puts its text into a group for each look and hue,
  /// so that the attributes of these are stated once: `attributes(Look, hue)`.
  template <class Draw, class Attributes>
  void draw_groups(const RunFrame& frame, Draw draw, Attributes attributes) {
    const auto& rows = frame.run.timeline->order;
    std::array<std::string, looks * palette.size()> groups;
    for (std::size_t w = 0; w < rows.size(); ++w) {
      for (const JobId id : rows[w]) {
        const Job job = frame.run.schedule->job(id);
        draw(id, w, groups[index(look_of(job.pass)) * palette.size() + hue_of(job.microbatch)]);
      }
    }
    for (std::size_t g = 0; g < groups.size(); ++g) {
      if (groups[g].empty()) continue;
      put("<g {}>\n{}</g>\n", attributes(static_cast<Look>(g / palette.size()), g % palette.size()),
          groups[g]);
    }
  }

  void draw_cells(const RunFrame& frame) {
    draw_groups(
        frame,
        [&](JobId id, std::size_t worker, std::string& group) {
          const Job job = frame.run.schedule->job(id);
          const Span span = frame.run.timeline->spans[id];
          const double width = (span.end - span.start) * scale_;
          // Cells are separated by a light seam. An outline lies on the border, so W and R are drawn half
          // a pixel smaller.
          const double seam = std::min(width > 6 ? 1.0 : 0.4, width / 4);
          const bool has_outline = look_of(job.pass) == Look::outlined || look_of(job.pass) == Look::dashed;
          const double inset = has_outline ? std::min(0.5, width / 4) : 0;
          fmt::format_to(std::back_inserter(group),
                         "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"{}><title>{} on worker {}, {} to "
                         "{}</title></rect>\n",
                         px(frame.x(span.start) + inset), px(frame.y(worker) + inset),
                         px(std::max(0.0, width - seam - 2 * inset)), px(row_height_ - 2 * inset),
                         width > 12 ? " rx=\"2\"" : "", to_string(job), worker, unit_.number(span.start),
                         unit_.number(span.end));
        },
        [](Look look, std::size_t hue) { return "class=\"jobs\" " + paint(look, hue); });
  }

  void draw_labels(const RunFrame& frame) {
    const JobLabels labels(frame);
    draw_groups(
        frame,
        [&](JobId id, std::size_t worker, std::string& group) {
          const Span span = frame.run.timeline->spans[id];
          const double x = left_margin + (span.start + span.end - 2 * frame.origin) / 2 * scale_ - 0.5;
          const JobLabels::Drawn drawn = labels.draw(id, x, frame.y(worker), group);
          legend_.labels = legend_.labels || drawn == JobLabels::Drawn::stage_and_microbatch;
          legend_.numbers = legend_.numbers || drawn == JobLabels::Drawn::microbatch;
        },
        [](Look look, std::size_t hue) {
          const char* const fill = look == Look::dark       ? "#ffffff"
                                   : look == Look::outlined ? palette[hue].dark
                                                            : ink;
          return fmt::format("class=\"labels\" text-anchor=\"middle\" fill=\"{}\"", fill);
        });
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

  std::span<const DrawnRun> runs_;
  ShownUnit unit_{"", 0};
  double makespan_ = 0;
  double scale_ = 1;  ///< pixels per unit
  double row_height_ = 0;
  LegendItems legend_;
  std::string body_;
};

}  // namespace

void require_drawable(std::size_t jobs) {
  if (jobs <= max_svg_jobs) return;
  throw InputError(
      fmt::format("timeline: an SVG image has at most {} jobs, and these runs have {}; an HTML page has "
                  "room for more",
                  max_svg_jobs, jobs));
}

std::string timeline_svg(std::span<const DrawnRun> runs, const SvgOptions& options) {
  std::size_t jobs = 0;
  for (const DrawnRun& run : runs) jobs += run.schedule->job_count();
  require_drawable(jobs);
  return Svg(runs, options).draw();
}

DrawnRun explained_run(const std::string& title, const RecordedStep& step) {
  return {.title = title,
          .schedule = &step.as_run,
          .timeline = &step.timeline,
          .idle = idle_parts(step),
          .path = critical_path(step)};
}

}  // namespace starpipe::plan
