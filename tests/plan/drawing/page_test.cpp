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

// Stages 0 and 1 copy their stashes, for half a unit each; stage 2 makes them again.
RecordedStep copying_step(const std::string& name) {
  Costs costs;
  costs.durations = {{.F = 1, .B = 1, .W = 1}};
  costs.host = HomeLink{.link = {.alpha = 0.5}};
  costs.disk = costs.host;
  const Schedule schedule =
      make_schedule(name, {.workers = 3, .microbatches = 4, .graph = StageGraph::chain(3)});
  constexpr Home homes[] = {Home::host, Home::disk, Home::none};
  return simulated_step(schedule.with_homes(homes), costs);
}

// The text of the data in a page.
std::string data_in(const std::string& html) {
  const std::size_t begin = html.find("id=\"data\">") + std::string_view("id=\"data\">").size();
  return html.substr(begin, html.find("</script>", begin) - begin);
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

TEST(TimelineData, CopiesAreRowsBelowThoseOfWorkers) {
  const RecordedStep step = copying_step("zb-h1");
  const auto data = timeline_data({"predicted", &step}, Costs{}, ticks_of(step));
  const auto& jobs = data["jobs"];
  // The third worker's stashes are made again.
  EXPECT_EQ(jobs["rows"], (std::vector<std::size_t>{12, 12, 16, 4, 4, 4, 4, 0, 0}));
  EXPECT_FALSE(jobs.contains("weights"));
  const auto ids = read(jobs["id"].get<std::string>());
  const auto starts = read(jobs["start"].get<std::string>());
  const auto lengths = read(jobs["length"].get<std::string>());
  const auto readies = read(jobs["ready"].get<std::string>());
  ASSERT_EQ(ids.size(), step.as_run.job_count());
  std::size_t i = 40;
  for (const int worker : {0, 1}) {
    for (const Pass pass : {Pass::O, Pass::L}) {
      std::int64_t id = 0;
      std::int64_t time = 0;
      for (int b = 0; b < 4; ++b, ++i) {
        id += ids[i];
        time += starts[i];
        const auto job = static_cast<JobId>(id);
        EXPECT_EQ(step.as_run.job(job), (Job{worker, b, pass}));
        EXPECT_DOUBLE_EQ(static_cast<double>(time) * 0.1, step.timeline.spans[job].start);
        EXPECT_EQ(lengths[i], 5);
        EXPECT_EQ(readies[i], 0);  // a simulated copy begins once it may
        time += lengths[i];
      }
    }
  }
  EXPECT_EQ(data["figures"]["received"]["reloads"]["count"], (std::vector<int>{4, 4, 0}));
}

TEST(TimelineData, WithoutCopiesNothingSaysSo) {
  const RecordedStep step = step_of("1f1b");
  const auto data = timeline_data({"predicted", &step}, Costs{}, ticks_of(step));
  EXPECT_EQ(data["jobs"]["rows"].size(), 3U);
  EXPECT_FALSE(data["figures"]["received"].contains("reloads"));
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
  const std::string data = data_in(report_page(runs));
  for (const char c : data) {
    EXPECT_TRUE(c >= ' ' && c <= '~' && c != '<' && c != '>' && c != '&') << static_cast<int>(c);
  }
  const auto parsed = nlohmann::ordered_json::parse(data);
  EXPECT_EQ(parsed["runs"][0]["title"], "</SCRIPT>");
  EXPECT_EQ(parsed["runs"][0]["report"].begin().key(), "</script><!--");
}

TEST(Page, SaysWhereCopiedStashesWait) {
  if (!has_page()) GTEST_SKIP() << "built without the page";
  const auto homes_of = [](const RecordedStep& step) {
    const PageRun runs[] = {
        {.title = "run", .unit = "", .costs = {}, .timelines = {{"predicted", &step}}, .report = nullptr}};
    const auto data = nlohmann::ordered_json::parse(data_in(report_page(runs)));
    return data["runs"][0]["schedule"].value("homes", nlohmann::ordered_json("none are copied"));
  };
  const RecordedStep by_stage = copying_step("1f1b");
  EXPECT_EQ(homes_of(by_stage), nlohmann::ordered_json({2, 3, 1}));  // Home::code
  const Schedule mixed = by_stage.as_run.with_homes(
      [](int stage, int microbatch) { return stage == microbatch ? Home::disk : Home::worker; });
  Costs costs;
  costs.disk = HomeLink{};
  EXPECT_EQ(homes_of(simulated_step(mixed, costs)),
            nlohmann::ordered_json({3, 0, 0, 0, 3, 0, 0, 0, 3, 0, 0, 0}));
  EXPECT_EQ(homes_of(step_of("1f1b")), "none are copied");
}

TEST(Page, LeavesOutWhatTheTimelinesHave) {
  const nlohmann::ordered_json report = {
      {"offsets", {1}}, {"losses", {2}}, {"explain", {{"record", 1}, {"per_step", 2}}}};
  const nlohmann::ordered_json expected = {{"losses", {2}}, {"explain", {{"per_step", 2}}}};
  EXPECT_EQ(report_for_page(report), expected);
}

}  // namespace
}  // namespace starpipe::plan
