// SPDX-License-Identifier: Apache-2.0
#include "plan/drawing/page.hpp"

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "plan/explain/recorded_step.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/plan/registry/registry.hpp"

namespace starpipe::plan {
namespace {

// The numbers of a column, as the page reads them.
std::vector<std::int64_t> read(std::string_view text) {
  constexpr std::string_view characters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::vector<std::int64_t> numbers;
  std::uint64_t value = 0;
  int shift = 0;
  for (const char c : text) {
    const std::uint64_t digit = characters.find(c);
    value |= (digit & 31) << shift;
    shift += 5;
    if (digit > 31) continue;
    const auto magnitude = static_cast<std::int64_t>(value >> 1);
    numbers.push_back((value & 1) != 0 ? -magnitude : magnitude);
    value = 0;
    shift = 0;
  }
  return numbers;
}

RecordedStep step_of(const std::string& name, double alpha = 0, double duration = 1) {
  Costs costs;
  costs.durations = {{.F = duration, .B = duration, .W = duration}};
  costs.links = Link{.alpha = alpha};
  const Schedule schedule =
      make_schedule(name, {.workers = 3, .microbatches = 4, .graph = StageGraph::chain(3)});
  return simulated_step(schedule, costs);
}

Ticks ticks_of(const RecordedStep& step) {
  const RecordedStep* const steps[] = {&step};
  return Ticks(steps);
}

TEST(Columns, NumbersComeBack) {
  const std::vector<std::int64_t> numbers = {0, 1, -1, 15, 16, -16, 1'000'000'007, -(std::int64_t{1} << 53)};
  Column plain;
  Column differences;
  for (const std::int64_t number : numbers) {
    plain.add(number);
    differences.add_difference(number);
  }
  EXPECT_EQ(read(plain.text()), numbers);
  std::vector<std::int64_t> sums = read(differences.text());
  for (std::size_t i = 1; i < sums.size(); ++i) sums[i] += sums[i - 1];
  EXPECT_EQ(sums, numbers);
}

TEST(Columns, SmallNumbersTakeOneCharacter) {
  Column column;
  for (int i = -15; i <= 15; ++i) column.add(i);
  EXPECT_EQ(column.text().size(), 31U);
}

TEST(Ticks, AreTheLargestPowerOfTenOfWhichAllTimesAreMultiples) {
  EXPECT_EQ(ticks_of(step_of("1f1b")).length(), 1);
  EXPECT_EQ(ticks_of(step_of("1f1b", 0.25)).length(), 0.01);
  EXPECT_EQ(ticks_of(step_of("1f1b", 0, 1e-6)).length(), 1e-6);
  EXPECT_EQ(ticks_of(step_of("1f1b", 0, 100)).length(), 100);
}

TEST(Ticks, StayBelowWhatJavaScriptHasExactly) {
  const RecordedStep step = step_of("1f1b", 1.0 / 3, 3e12 / 7);
  EXPECT_LE(ticks_of(step).of(step.timeline.makespan), std::int64_t{1} << 53);
  EXPECT_NEAR(static_cast<double>(ticks_of(step).of(step.timeline.makespan)) * ticks_of(step).length(),
              step.timeline.makespan, 1e-14 * step.timeline.makespan);
}

TEST(TimelineData, JobsHaveTheTimesOfTheTimeline) {
  const RecordedStep step = step_of("zb-h1", 0.5);
  const auto data = timeline_data({"predicted", &step}, Costs{}, ticks_of(step));
  const auto& jobs = data["jobs"];
  const auto ids = read(jobs["id"].get<std::string>());
  const auto starts = read(jobs["start"].get<std::string>());
  const auto lengths = read(jobs["length"].get<std::string>());
  ASSERT_EQ(ids.size(), step.as_run.job_count());
  EXPECT_FALSE(jobs.contains("submitted"));  // all at 0
  EXPECT_FALSE(jobs.contains("weights"));    // where they are used
  std::size_t i = 0;
  for (const std::vector<JobId>& row : step.timeline.order) {
    std::int64_t id = 0;
    std::int64_t time = 0;
    for (const JobId expected : row) {
      id += ids[i];
      time += starts[i];
      EXPECT_EQ(id, expected);
      EXPECT_DOUBLE_EQ(static_cast<double>(time) * 0.1, step.timeline.spans[expected].start);
      time += lengths[i++];
      EXPECT_DOUBLE_EQ(static_cast<double>(time) * 0.1, step.timeline.spans[expected].end);
    }
  }
}

TEST(TimelineData, IdleTimesAndJobsFillTheStep) {
  const RecordedStep step = step_of("1f1b", 0.5);
  const auto data = timeline_data({"predicted", &step}, Costs{}, ticks_of(step));
  std::int64_t sum = 0;
  for (const auto* part : {"jobs", "idle"}) {
    for (const std::int64_t length : read(data[part]["length"].get<std::string>())) sum += length;
  }
  EXPECT_EQ(sum, 3 * ticks_of(step).of(step.timeline.makespan));
  std::int64_t path = 0;
  for (const std::int64_t length : read(data["path"]["length"].get<std::string>())) path += length;
  EXPECT_EQ(path, ticks_of(step).of(step.timeline.makespan));
}

TEST(Page, HasDataThatNoTextCanLeave) {
  const RecordedStep step = step_of("1f1b");
  const nlohmann::ordered_json report = {{"</script><!--", "<script> & \u2028 \xff"}};
  const PageRun runs[] = {
      {.title = "</SCRIPT>", .unit = "", .costs = {}, .timelines = {{"<b>", &step}}, .report = &report}};
  if (!has_page()) {
    EXPECT_THROW(static_cast<void>(report_page(runs)), InputError);
    EXPECT_THROW(require_page("--html"), InputError);
    return;
  }
  const std::string html = report_page(runs);
  const std::size_t begin = html.find("id=\"data\">") + std::string_view("id=\"data\">").size();
  const std::string data = html.substr(begin, html.find("</script>", begin) - begin);
  for (const char c : data) {
    EXPECT_TRUE(c >= ' ' && c <= '~' && c != '<' && c != '>' && c != '&') << static_cast<int>(c);
  }
  const auto parsed = nlohmann::ordered_json::parse(data);
  EXPECT_EQ(parsed["runs"][0]["title"], "</SCRIPT>");
  EXPECT_EQ(parsed["runs"][0]["report"].begin().key(), "</script><!--");
}

TEST(Page, LeavesOutWhatTheTimelinesHave) {
  const nlohmann::ordered_json report = {
      {"offsets", {1}}, {"losses", {2}}, {"explain", {{"record", 1}, {"per_step", 2}}}};
  const nlohmann::ordered_json expected = {{"losses", {2}}, {"explain", {{"per_step", 2}}}};
  EXPECT_EQ(report_for_page(report), expected);
}

}  // namespace
}  // namespace starpipe::plan
