// SPDX-License-Identifier: Apache-2.0
// runtime.memory_limit: the runs that a limit refuses, and the schedule that the message names.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/engine/memory_need.hpp"
#include "runtime/setup/experiment.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/simulate/simulate.hpp"
#include "starpipe/runtime/config/config.hpp"
#include "support/config.hpp"
#include "support/message_of.hpp"
#include "support/networks.hpp"

namespace starpipe::runtime {
namespace {

using namespace testing;
using ::testing::HasSubstr;
using ::testing::Not;

Config gpipe_config() { return config_of(small("mlp", {{"layers", 8}, {"hidden", 64}}), "gpipe", 4, 16, 32); }

std::string problem(const Config& config) {
  return message_of([&] { make_experiment(config); });
}

WorkerMemory largest(const Config& config) {
  const Experiment e = make_experiment(config);
  plan::Costs costs = costs_by_flops(e.network);
  const auto needs =
      memory_need(e.schedule, e.network, config.training.optimizer, costs, plan::simulate(e.schedule, costs));
  return *std::ranges::max_element(needs, {}, &WorkerMemory::total);
}

TEST(MemoryLimit, IsWhatTheLargestWorkerMayNeed) {
  Config config = gpipe_config();
  const std::uint64_t bytes = largest(config).total();
  config.runtime.memory_limits = {bytes};
  EXPECT_EQ(problem(config), "");
  config.runtime.memory_limits = {bytes - 1};
  const std::string message = problem(config);
  EXPECT_THAT(message, HasSubstr("runtime.memory_limit: under gpipe, worker "));
  EXPECT_THAT(message, HasSubstr("needs " + std::to_string(bytes) + " bytes")) << "rounded they are equal";
  EXPECT_THAT(message, HasSubstr("more than " + std::to_string(bytes - 1) + " bytes"));
  EXPECT_THAT(message, Not(HasSubstr("\n")));
}

TEST(MemoryLimit, EachWorkerMayHaveItsOwn) {
  Config config = gpipe_config();
  const Experiment e = make_experiment(config);
  const plan::Costs costs = costs_by_flops(e.network);
  std::vector<std::uint64_t> needs;
  for (const WorkerMemory& need : memory_need(e.schedule, e.network, config.training.optimizer, costs,
                                              plan::simulate(e.schedule, costs)))
    needs.push_back(need.total());
  ASSERT_NE(needs.front(), needs.back());
  config.runtime.memory_limits = needs;
  EXPECT_EQ(problem(config), "");
  for (std::size_t w = 0; w < needs.size(); ++w) {
    config.runtime.memory_limits = needs;
    --config.runtime.memory_limits[w];
    EXPECT_THAT(problem(config),
                HasSubstr("runtime.memory_limit: under gpipe, worker " + std::to_string(w) + " needs"));
  }
  config.runtime.memory_limits = {needs[0], needs[1]};
  EXPECT_THAT(problem(config), HasSubstr("runtime.memory_limit: 2 values for 4 workers"));
}

TEST(MemoryLimit, RecomputationIsNamedWhenItFits) {
  Config config = gpipe_config();
  Config recomputing = config;
  recomputing.schedule.homes = {plan::Home::none};
  const std::uint64_t bytes = largest(recomputing).total();
  config.runtime.memory_limits = {bytes};
  EXPECT_THAT(problem(config), HasSubstr("it fits with schedule.home: none"));
  recomputing.runtime.memory_limits = {bytes};
  EXPECT_EQ(problem(recomputing), "");
  config.runtime.memory_limits = {bytes - 1};
  EXPECT_THAT(problem(config), Not(HasSubstr("it fits with schedule.home: none")));
}

/// Tries all schedules one by one.
TEST(MemoryLimit, TheFastestThatFitsIsNamed) {
  Config config = gpipe_config();
  config.runtime.memory_limits = {largest(config).total() / 2};
  double shortest = std::numeric_limits<double>::infinity();
  std::string best;
  for (const plan::ScheduleEntry& entry : plan::schedule_entries()) {
    for (const bool recompute : {false, true}) {
      Config other = config;
      other.schedule.name = entry.name;
      other.schedule.homes = {recompute ? plan::Home::none : plan::Home::worker};
      if (!problem(other).empty()) continue;
      const Experiment e = make_experiment(other);
      plan::Costs costs = costs_by_flops(e.network);
      const double makespan = plan::simulate(e.schedule, costs).makespan / e.schedule.stages();
      if (makespan >= shortest) continue;
      shortest = makespan;
      best = entry.name;
    }
  }
  ASSERT_FALSE(best.empty());
  EXPECT_THAT(problem(config), HasSubstr("the fastest that fits is schedule.name: " + best));
}

TEST(MemoryLimit, NothingThatFitsIsSaidToo) {
  Config config = gpipe_config();
  config.runtime.memory_limits = {4096};
  EXPECT_THAT(problem(config), HasSubstr("no named schedule fits"));
  EXPECT_THAT(problem(config), HasSubstr("the least is "));
}

/// A limit of stashes and a limit of bytes are two keys.
TEST(MemoryLimit, IsNotTheLimitOfStashes) {
  Config config = gpipe_config();
  config.schedule.memory_limits = {4};
  EXPECT_EQ(problem(config), "") << "four stashes, whatever their size";
  const std::uint64_t bounded = largest(config).total();
  EXPECT_LT(bounded, largest(gpipe_config()).total());
  config.runtime.memory_limits = {bounded};
  EXPECT_EQ(problem(config), "") << "both hold";
}

TEST(MemoryLimit, EmulatedTimesDecideWhoIsFastest) {
  Config config = gpipe_config();
  config.runtime.emulate = EmulationConfig{.F = {1e-3}, .B = {1e-3}, .W = {1e-3}, .comm = 0.1};
  config.runtime.memory_limits = {largest(gpipe_config()).total() / 2};
  const std::string message = problem(config);
  EXPECT_THAT(message, HasSubstr("the fastest that fits is schedule.name: "));
  EXPECT_THAT(message, Not(HasSubstr("stages: 8"))) << "transfers are dear, so few of them";
}

}  // namespace
}  // namespace starpipe::runtime
