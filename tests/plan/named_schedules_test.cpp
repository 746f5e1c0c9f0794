// SPDX-License-Identifier: Apache-2.0
// What must be so for every named schedule, and the figures of published generators and papers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "starpipe/plan/check.hpp"
#include "starpipe/plan/error.hpp"
#include "starpipe/plan/registry.hpp"
#include "starpipe/plan/simulate.hpp"

namespace starpipe::plan {
namespace {

using ::testing::HasSubstr;

ScheduleRequest request(int workers, int microbatches, const Costs& costs = {}) {
  ScheduleRequest result;
  result.workers = workers;
  result.microbatches = microbatches;
  result.costs = costs;
  return result;
}

Costs costs(Durations durations, double comm) {
  Costs result;
  result.durations = {durations};
  result.alpha = comm;
  return result;
}

int peak(const Timeline& timeline) { return std::ranges::max(timeline.peak_activations); }

// Those that only some numbers of workers or micro-batches make sense for, and which.
const std::map<std::string, std::function<bool(int W, int B)>> defined_for = {
    {"chimera", [](int W, int) { return W % 2 == 0; }},
    {"dualpipe", [](int W, int B) { return W % 2 == 0 && B % 2 == 0 && B >= 2 * W; }},
    {"dualpipe-v", [](int W, int B) { return B >= 2 * W; }},
    {"lpp", [](int, int) { return false; }},  // need groups
    {"fslpp", [](int, int) { return false; }},
};

TEST(NamedSchedules, FinishForAnyWorkersAndMicrobatches) {
  for (const auto& entry : schedule_entries()) {
    const auto rule = defined_for.find(entry.name);
    for (int W = 1; W <= 9; ++W) {
      for (int B = 1; B <= 2 * W + 4; ++B) {
        SCOPED_TRACE(entry.name + " W=" + std::to_string(W) + " B=" + std::to_string(B));
        if (rule != defined_for.end() && !rule->second(W, B)) {
          EXPECT_THROW(make_schedule(entry.name, request(W, B)), InputError);
          continue;
        }
        const Schedule schedule = make_schedule(entry.name, request(W, B));
        ASSERT_TRUE(check(schedule).ok()) << check(schedule).problem;
        EXPECT_EQ(schedule.stages(), entry.stages_per_worker * W);
      }
    }
  }
}

TEST(NamedSchedules, AreThePublishedOnes) {
  std::ifstream file(STARPIPE_TEST_DATA "/published.json");
  const auto published = nlohmann::json::parse(file);
  const std::set<std::string> exact = {"1f1b", "interleaved-1f1b"};
  ASSERT_GT(published.at("cases").size(), 200U);
  for (const auto& row : published.at("cases")) {
    SCOPED_TRACE(row.dump());
    const std::string name = row.at(0);
    const int W = row.at(1);
    const auto c = costs({row.at(3), row.at(4), row.at(5)}, row.at(6));
    const Schedule schedule = make_schedule(name, request(W, row.at(2), c));
    const Timeline timeline = simulate(schedule, c);
    const double makespan = row.at(7);
    const double memory = row.at(9);
    const double held = static_cast<double>(peak(timeline)) * W / schedule.stages();
    if (exact.contains(name)) {
      EXPECT_NEAR(timeline.makespan, makespan, 1e-9 * makespan);
      EXPECT_NEAR(timeline.device_span, row.at(8), 1e-9 * makespan);
      EXPECT_DOUBLE_EQ(held, memory);
    } else {
      EXPECT_LE(timeline.makespan, 1.01 * makespan);
      EXPECT_LE(held, memory);
    }
  }
}

}  // namespace
}  // namespace starpipe::plan
