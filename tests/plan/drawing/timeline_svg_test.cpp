// SPDX-License-Identifier: Apache-2.0
#include "plan/drawing/timeline_svg.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "plan/explain/critical_path.hpp"
#include "plan/explain/idle_causes.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/simulate/simulate.hpp"
#include "support/folder.hpp"
#include "support/message_of.hpp"
#include "support/schedules.hpp"

namespace starpipe::plan {
namespace {

/// A schedule with every kind of pass: the backward passes of even micro-batches are split.
Schedule mixed(int workers, int microbatches) {
  ScheduleSpec spec;
  spec.name = "mixed";
  spec.graph = StageGraph::chain(workers);
  spec.microbatches = microbatches;
  spec.workers = workers;
  spec.split_backward = [](int, int b) { return b % 2 == 0; };
  spec.placement = [](const Job& job) { return Placement{job.stage, job.stage}; };
  spec.priority = [](const Job& job) { return job.microbatch; };
  spec.discipline = Discipline::greedy;
  return Schedule(spec);
}

std::string svg_of(const Schedule& schedule, const std::string& title = "title",
                   const SvgOptions& options = {}) {
  const Timeline timeline = simulate(schedule);
  const DrawnRun run{title, &schedule, &timeline};
  return timeline_svg({&run, 1}, options);
}

/// <rect> elements inside groups of class "jobs".
std::size_t job_rects(const std::string& svg) {
  std::size_t count = 0;
  for (auto group = svg.find("<g class=\"jobs\""); group != std::string::npos;
       group = svg.find("<g class=\"jobs\"", group + 1)) {
    const auto end = svg.find("</g>", group);
    for (auto rect = svg.find("<rect", group); rect < end; rect = svg.find("<rect", rect + 1)) ++count;
  }
  return count;
}

/// True if an XML parser takes it; nullopt where python3 is missing.
std::optional<bool> well_formed(const std::string& svg) {
  if (std::system("python3 -c 'import xml.dom.minidom' >/dev/null 2>&1") != 0) return std::nullopt;
  const Folder folder;
  const std::string command = "python3 -c 'import sys, xml.etree.ElementTree as e; e.parse(sys.argv[1])' '" +
                              folder.write("timeline.svg", svg).string() + "'";
  return std::system(command.c_str()) == 0;
}

TEST(TimelineSvg, HasOneRectPerJob) {
  for (const Schedule& schedule :
       {named("1f1b", 4, 8), named("gpipe", 3, 5), named("ddp", 4, 8), mixed(4, 7)}) {
    EXPECT_EQ(job_rects(svg_of(schedule)), schedule.job_count()) << schedule.name();
  }
}

TEST(TimelineSvg, IsWellFormedWhateverTheTitle) {
  const auto verdict = well_formed(
      svg_of(mixed(4, 7), "a <b> & \"c\" \x01 \xff\xfe caf\xc3\xa9 \xed\xa0\x80 \xe0\x80\x80 \xef\xbf\xbf"));
  if (!verdict) GTEST_SKIP() << "no python3";
  EXPECT_TRUE(*verdict);
}

TEST(TimelineSvg, StatesTitleFiguresAndUnit) {
  const std::string svg = svg_of(named("1f1b", 4, 8), "1f1b <predicted>", {"steps"});
  EXPECT_NE(svg.find("1f1b &lt;predicted&gt;"), std::string::npos);
  EXPECT_NE(svg.find("makespan 33 steps, bubble fraction 27.3 % by makespan"), std::string::npos);
  EXPECT_NE(svg.find("time (steps)"), std::string::npos);
  EXPECT_EQ(svg.find("<script"), std::string::npos);
}

TEST(TimelineSvg, StacksRunsOnOneTimeScale) {
  const Schedule schedule = named("1f1b", 2, 2);
  const Timeline predicted = simulate(schedule);
  auto spans = predicted.spans;
  // A measured run starts at any time.
  for (Span& span : spans) span = {1000 + 2 * span.start, 1000 + 2 * span.end};
  const Timeline measured = evaluate(schedule, {}, spans, predicted.order);
  const std::vector<DrawnRun> runs = {{"predicted", &schedule, &predicted},
                                      {"measured", &schedule, &measured}};

  const std::string svg = timeline_svg(runs);

  EXPECT_EQ(job_rects(svg), 2 * schedule.job_count());
  EXPECT_LT(svg.find("predicted"), svg.find("measured"));
  // The idle background of a worker's row spans its run: half of the plot for the first.
  std::vector<double> widths;
  const std::string width = "width=\"";
  for (auto fill = svg.find("fill=\"url(#idle)\"/>"); fill != std::string::npos;
       fill = svg.find("fill=\"url(#idle)\"/>", fill + 1)) {
    widths.push_back(std::stod(svg.substr(svg.rfind(width, fill) + width.size())));
  }
  ASSERT_EQ(widths.size(), 4U);
  EXPECT_NEAR(widths[0] * 2, widths[3], 0.02);
}

TEST(TimelineSvg, TheLegendExplainsEveryLineAtTheFoot) {
  const auto svg = [](int chunks) {
    const ScheduleRequest request = {.workers = 2, .microbatches = 4, .graph = StageGraph::chain(2 * chunks)};
    return svg_of(make_schedule("interleaved-1f1b", request));
  };
  EXPECT_EQ(svg(1).find("at the foot"), std::string::npos);
  EXPECT_NE(svg(2).find("line at the foot: the worker's second stage"), std::string::npos) << svg(2);
  EXPECT_NE(svg(4).find("1 to 3 lines at the foot: stages 2 to 4 of the worker"), std::string::npos)
      << svg(4);
}

TEST(TimelineSvg, ShortSecondsAreShownInSmallerUnits) {
  const Schedule schedule = named("gpipe", 2, 2);
  Costs costs;
  costs.durations = {{0.001, 0.001, 0.001}};
  const Timeline timeline = simulate(schedule, costs);
  const DrawnRun run{"t", &schedule, &timeline};

  const std::string svg = timeline_svg({&run, 1}, {"s"});

  EXPECT_NE(svg.find("makespan 9 ms"), std::string::npos);
  EXPECT_NE(svg.find("time (ms)"), std::string::npos);
}

TEST(TimelineSvg, RefusesMoreJobsThanViewersTake) {
  const Schedule schedule = named("gpipe", 5, 501);
  const Timeline timeline = simulate(schedule);
  const DrawnRun run{"t", &schedule, &timeline};
  EXPECT_EQ(job_rects(timeline_svg({&run, 1})), 5010U);
  const std::vector<DrawnRun> twice = {run, run};
  const std::string message = message_of([&] { timeline_svg(twice); });
  EXPECT_NE(message.find("at most 10000 jobs, and these runs have 10020"), std::string::npos) << message;
  EXPECT_NE(message.find("HTML"), std::string::npos) << message;
}

/// Returns how often `part` occurs.
std::size_t occurrences(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

/// A run with the causes of its idle time and its critical path.
DrawnRun explained(const RecordedStep& step) {
  return {"explained", &step.as_run, &step.timeline, idle_parts(step), critical_path(step)};
}

TEST(TimelineSvg, HatchesIdleTimeByCause) {
  const RecordedStep step = simulated_step(named("1f1b", 4, 8), {.links = Link{.alpha = 0.25}});
  const DrawnRun run = explained(step);

  const std::string svg = timeline_svg({&run, 1});

  for (const IdleCause cause : {IdleCause::fill, IdleCause::drain, IdleCause::producer, IdleCause::transfer,
                                IdleCause::order, IdleCause::runtime}) {
    const std::string word(to_string(cause));
    const auto parts = static_cast<std::size_t>(
        std::ranges::count_if(run.idle, [&](const IdlePart& part) { return part.cause == cause; }));
    EXPECT_EQ(occurrences(svg, "<title>" + word + ": "), parts);
    // The group of the parts, and the entry of the legend.
    EXPECT_EQ(occurrences(svg, "fill=\"url(#idle-" + word + ")\""), parts > 0 ? 2U : 0U) << word;
    EXPECT_EQ(occurrences(svg, ">idle: " + word), parts > 0 ? 1U : 0U) << word;
  }
  EXPECT_EQ(job_rects(svg), step.as_run.job_count());
  EXPECT_NE(
      svg.find("<title>transfer: F(1,0) waits for the result of F(0,0) from worker 0, 1 to 1.25</title>"),
      std::string::npos);
  EXPECT_EQ(svg.find(">idle</text>"), std::string::npos);
  EXPECT_TRUE(well_formed(svg).value_or(true));
}

TEST(TimelineSvg, OutlinesTheCriticalPath) {
  const RecordedStep step = simulated_step(named("1f1b", 4, 8), {.links = Link{.alpha = 0.25}});
  const DrawnRun run = explained(step);
  const auto jobs = std::ranges::count(run.path, PathPart::Kind::compute, &PathPart::kind);

  const std::string svg = timeline_svg({&run, 1});

  const auto path = svg.find("<path class=\"critical\"");
  ASSERT_NE(path, std::string::npos);
  const std::string lines = svg.substr(path, svg.find("/>", path) - path);
  EXPECT_EQ(occurrences(lines, "z"), static_cast<std::size_t>(jobs));
  EXPECT_EQ(occurrences(svg, ">critical path</text>"), 1U);
}

TEST(TimelineSvg, SaysNothingOfCausesThatItDoesNotKnow) {
  const std::string svg = svg_of(named("1f1b", 4, 8));
  EXPECT_EQ(svg.find("idle-"), std::string::npos);
  EXPECT_EQ(svg.find("critical"), std::string::npos);
  EXPECT_EQ(occurrences(svg, ">idle</text>"), 1U);
}

TEST(TimelineSvg, DrawsNothingWithoutRunsOrTime) {
  const auto empty = well_formed(timeline_svg({}));
  const Schedule schedule = named("gpipe", 1, 1);
  Costs costs;
  costs.durations = {{0, 0, 0}};
  const Timeline timeline = simulate(schedule, costs);
  const DrawnRun run{"t", &schedule, &timeline};
  const auto instant = well_formed(timeline_svg({&run, 1}));
  if (!empty) GTEST_SKIP() << "no python3";
  EXPECT_TRUE(*empty);
  EXPECT_TRUE(*instant);
}

}  // namespace
}  // namespace starpipe::plan
