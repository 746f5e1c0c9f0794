// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/drawing/schedule_text.hpp"

#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include "starpipe/base/index.hpp"
#include "starpipe/plan/simulate/simulate.hpp"
#include "support/schedules.hpp"

namespace starpipe::plan {
namespace {

TEST(ScheduleText, DrawsWhatFits) {
  const Schedule schedule = named("gpipe", 2, 2);

  const std::string text = schedule_text(schedule, simulate(schedule));

  EXPECT_NE(text.find("worker 0 F0 F1 ........ BW1== BW0==\n"
                      "worker 1 .. F0 F1 BW1== BW0== .....\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("bubble fraction, by makespan   33.3 %"), std::string::npos) << text;
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
}

TEST(ScheduleText, StaysWithinTheTerminal) {
  for (const Schedule& schedule : examples()) {
    for (const int columns : {80, 120, 200}) {
      std::istringstream text(schedule_text(schedule, simulate(schedule), {.columns = columns}));
      std::string line;
      bool drawn = false;
      std::getline(text, line);  // the title
      while (std::getline(text, line) && !line.starts_with("makespan")) {
        if (line.starts_with("worker 0 ")) drawn = true;
        EXPECT_LE(line.size(), index(columns)) << line;
      }
      EXPECT_TRUE(drawn) << schedule.name();
    }
  }
}

/// The row of a worker in a drawing, without its name.
std::string row_of(const std::string& text, int worker) {
  const std::string name = "worker " + std::to_string(worker) + " ";
  const auto begin = text.find("\n" + name) + 1 + name.size();
  return text.substr(begin, text.find('\n', begin) - begin);
}

TEST(ScheduleText, ScalesWhatIsTooWide) {
  const Schedule schedule = named("1f1b", 8, 64);

  const std::string text = schedule_text(schedule, simulate(schedule), {.columns = 80});

  // 213 units of time on 71 columns. Worker 7 waits for 7, works for 192 without a pause and waits for 14.
  EXPECT_NE(text.find("a column is 3: its longest pass"), std::string::npos) << text;
  EXPECT_EQ(row_of(text, 7).size(), 71U) << text;
  EXPECT_EQ(row_of(text, 7).substr(0, 4), "..FB") << text;
  EXPECT_EQ(row_of(text, 7).find('.', 2), 66U) << text;
  EXPECT_EQ(row_of(text, 0).substr(0, 2), "FF") << text;

  // The width that the line names is the smallest in which every job has its label.
  const auto words = text.find(" columns name every job");
  const int columns = std::stoi(text.substr(text.rfind(' ', words - 1)));
  EXPECT_EQ(schedule_text(schedule, simulate(schedule), {.columns = columns}).find("scaled"),
            std::string::npos);
  EXPECT_NE(schedule_text(schedule, simulate(schedule), {.columns = columns - 1}).find("scaled"),
            std::string::npos);
}

TEST(ScheduleText, ShowsUnits) {
  const Schedule schedule = named("gpipe", 2, 2);
  Costs costs;
  costs.durations = {{0.002, 0.002, 0.002}};

  const std::string text = schedule_text(schedule, simulate(schedule, costs), {.unit = "s"});

  EXPECT_NE(text.find("makespan                       18 ms\n"), std::string::npos) << text;
  EXPECT_NE(text.find("busy (ms)"), std::string::npos) << text;
  EXPECT_NE(text.find("idle; time in ms\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\n         0     "), std::string::npos) << text;
}

TEST(ScheduleText, DrawsNothingWithoutTime) {
  const Schedule schedule = named("gpipe", 2, 2);
  Costs costs;
  costs.durations = {{0, 0, 0}};

  EXPECT_NE(schedule_text(schedule, simulate(schedule, costs)).find("nothing to draw"), std::string::npos);
}

TEST(ScheduleText, ColourChangesNothingButColour) {
  const Schedule schedule = mixed_v();
  std::string text = schedule_text(schedule, simulate(schedule), {.colour = true, .columns = 200});
  EXPECT_NE(text.find("\x1b["), std::string::npos);
  for (auto at = text.find('\x1b'); at != std::string::npos; at = text.find('\x1b')) {
    text.erase(at, text.find('m', at) - at + 1);
  }
  EXPECT_NE(text.find("W0 "), std::string::npos) << text;
  EXPECT_NE(text.find("worker 3"), std::string::npos);
}

}  // namespace
}  // namespace starpipe::plan
