// SPDX-License-Identifier: Apache-2.0
#include "plan/drawing/job_labels.hpp"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <vector>

#include <fmt/format.h>

#include "plan/drawing/svg_text.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::plan::detail {
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

}  // namespace starpipe::plan::detail
