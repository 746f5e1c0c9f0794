// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/registry/registry.hpp"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/base/registration.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/simulate/simulate.hpp"
#include "support/message_of.hpp"
#include "support/random_schedules.hpp"

namespace starpipe::plan {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

std::string refusal(std::string_view name, const ScheduleRequest& request) {
  return message_of([&] { make_schedule(name, request); });
}

const std::vector<std::string> by_stage = {"naive", "gpipe", "1f1b", "eager-1f1b"};
const std::vector<std::string> all = {"naive", "gpipe", "1f1b", "eager-1f1b", "ddp", "fsdp", "lpp", "fslpp"};

TEST(Registry, ListsTheNamesSortedWithDescriptions) {
  std::vector<std::string> names;
  for (const auto& entry : schedule_entries()) {
    names.push_back(entry.name);
    EXPECT_FALSE(entry.summary.empty()) << entry.name;
    EXPECT_EQ(entry.summary.find('\n'), std::string::npos) << entry.name;
    EXPECT_FALSE(entry.source.empty()) << entry.name;
    // A title, not the number that comments give a source.
    EXPECT_TRUE(std::isalpha(static_cast<unsigned char>(entry.source.front())))
        << entry.name << ": " << entry.source;
    EXPECT_EQ(entry.source.find("; 00"), std::string::npos) << entry.name << ": " << entry.source;
    EXPECT_TRUE(entry.build) << entry.name;
  }
  EXPECT_THAT(names, IsSupersetOf(all));
  EXPECT_TRUE(std::ranges::is_sorted(names));
}

TEST(Registry, UnknownNameListsTheKnownOnes) {
  const std::string text = refusal("zero-trouble", {});
  EXPECT_THAT(text, HasSubstr("zero-trouble"));
  for (const auto& name : all) EXPECT_THAT(text, HasSubstr(name));
}

TEST(Registry, AcceptsNewNamesOnce) {
  const ScheduleEntry mine{"registry-test", "one line", "tests",
                           [](const ScheduleRequest& request) { return make_schedule("gpipe", request); }};
  EXPECT_TRUE(register_schedule(mine));
  EXPECT_EQ(make_schedule("registry-test", {.workers = 3}).workers(), 3);
  EXPECT_FALSE(register_schedule(mine));
  EXPECT_THAT(refusal("registry-test", {.workers = 3}),
              AllOf(HasSubstr("'registry-test'"), HasSubstr("twice")));
  EXPECT_THROW(schedule_entries(), InputError);
  ScheduleEntry taken = mine;
  taken.name = "gpipe";
  EXPECT_FALSE(register_schedule(taken));
  EXPECT_THAT(take_registration_errors(), ElementsAre(HasSubstr("'registry-test'"), HasSubstr("'gpipe'")));
  EXPECT_EQ(refusal("registry-test", {.workers = 3}), "");
}

// As the function of a plug-in may do.
TEST(Registry, PlacementAndGroupsThatAFunctionOverlooksAreRefused) {
  register_schedule({"overlooks", "one line", "tests", [](ScheduleRequest request) {
                       request.stage_workers.clear();
                       request.groups.reset();
                       return make_schedule("gpipe", request);
                     }});
  EXPECT_EQ(refusal("overlooks", {.workers = 3, .stage_workers = {0, 1, 2}}), "");
  EXPECT_THAT(refusal("overlooks", {.workers = 3, .stage_workers = {2, 1, 0}}),
              HasSubstr("placement: overlooks"));
  EXPECT_THAT(refusal("overlooks", {.workers = 3, .stage_workers = {0, 1}}),
              HasSubstr("placement: overlooks"));
  EXPECT_THAT(refusal("overlooks", {.workers = 4, .groups = 2}), HasSubstr("groups: overlooks"));
  register_schedule({"fixed", "one line", "tests", [](ScheduleRequest request) {
                       if (!request.groups) throw InputError("needs groups");
                       return make_schedule("lpp", request);
                     }});
  EXPECT_EQ(refusal("fixed", {.workers = 4, .groups = 2}), "");
}

TEST(Registry, GroupsMustDivideTheWorkers) {
  for (const std::string name : {"lpp", "fslpp", "1f1b"}) {
    EXPECT_THAT(refusal(name, {.workers = 6, .groups = 4}),
                AllOf(HasSubstr(name), HasSubstr("6"), HasSubstr("4")));
    EXPECT_THAT(refusal(name, {.workers = 6, .groups = 0}), HasSubstr("0"));
    EXPECT_THAT(refusal(name, {.workers = 6, .groups = -2}), HasSubstr("-2"));
    EXPECT_THAT(refusal(name, {.workers = 6, .groups = 7}), AllOf(HasSubstr("6"), HasSubstr("7")));
    EXPECT_EQ(refusal(name, {.workers = 6, .graph = StageGraph::chain(2), .groups = 3}), "");
    if (name == "1f1b") continue;
    EXPECT_THAT(refusal(name, {.workers = 6}), AllOf(HasSubstr(name), HasSubstr("groups")));
  }
}

TEST(Registry, OtherSchedulesRefuseGroups) {
  for (const std::string name : {"zb-h1", "v-half", "chimera", "ddp", "fsdp"}) {
    EXPECT_THAT(refusal(name, {.workers = 4, .groups = 2}), AllOf(HasSubstr(name), HasSubstr("groups")));
  }
}

TEST(Registry, AGroupIsAPipelineForItsMicrobatches) {
  for (const auto& name : by_stage) {
    const StageGraph graph = StageGraph::chain(3);
    const Schedule alone = make_schedule(name, {.workers = 3, .microbatches = 4, .graph = graph});
    const Schedule grouped =
        make_schedule(name, {.workers = 6, .microbatches = 8, .graph = graph, .groups = 2});
    for (int group = 0; group < 2; ++group) {
      for (int s = 0; s < 3; ++s) {
        const std::span<const JobId> order = grouped.order(3 * group + s);
        ASSERT_EQ(order.size(), alone.order(s).size());
        for (std::size_t k = 0; k < order.size(); ++k) {
          Job expected = alone.job(alone.order(s)[k]);
          expected.microbatch = 2 * expected.microbatch + group;
          EXPECT_EQ(grouped.job(order[k]), expected) << name;
        }
      }
    }
    EXPECT_EQ(simulate(grouped).makespan, simulate(alone).makespan) << name;
    const Schedule placed = make_schedule(
        name, {.workers = 4, .microbatches = 2, .graph = graph, .groups = 2, .stage_workers = {1, 0, 1}});
    EXPECT_EQ(placed.compute(placed.forward(0, 0)), 1) << name;
    EXPECT_THAT(refusal(name, {.workers = 4, .graph = graph, .groups = 2, .stage_workers = {1, 0, 2}}),
                HasSubstr("worker 2, which does not exist (workers 0..1 of a group)"));
    EXPECT_EQ(refusal(name, {.workers = 3, .groups = 1}), "");
  }
}

TEST(Registry, OneStageAWorkerUnlessPlacedOtherwise) {
  for (const auto& name : by_stage) {
    ScheduleRequest request{.workers = 4, .microbatches = 2, .graph = StageGraph::chain(3)};
    EXPECT_THAT(refusal(name, request), AllOf(HasSubstr("3 stages"), HasSubstr("4 workers")));
    request.stage_workers = {0, 1};
    EXPECT_THAT(refusal(name, request), AllOf(HasSubstr("2"), HasSubstr("3")));
    request.stage_workers = {0, 4, 1};
    EXPECT_THAT(refusal(name, request), AllOf(HasSubstr("stage 1"), HasSubstr("worker 4")));
    request.stage_workers = {0, -1, 1};
    EXPECT_THAT(refusal(name, request), AllOf(HasSubstr("stage 1"), HasSubstr("worker -1")));
    request.stage_workers = {3, 1, 1};
    const auto schedule = make_schedule(name, request);
    for (int b = 0; b < 2; ++b) {
      for (int s = 0; s < 3; ++s) {
        EXPECT_EQ(schedule.compute(schedule.forward(s, b)), request.stage_workers[index(s)]);
        EXPECT_EQ(schedule.compute(schedule.backward(s, b)), request.stage_workers[index(s)]);
      }
    }
  }
  for (const std::string name : {"ddp", "fsdp", "lpp", "fslpp"}) {
    ScheduleRequest request{.workers = 2, .stage_workers = {0, 1}};
    if (name.find("lpp") != std::string::npos) request.groups = 1;
    EXPECT_THAT(refusal(name, request), HasSubstr(name));
  }
}

TEST(Registry, RefusesMemoryLimitsBelowOne) {
  EXPECT_THAT(refusal("1f1b-star", {.workers = 2, .memory_limits = {0}}), HasSubstr("memory limit of 0"));
  EXPECT_EQ(refusal("1f1b-star", {.workers = 2, .memory_limits = {1}}), "");
}

TEST(Registry, RefusesCountsBelowOne) {
  for (const auto& name : all) {
    ScheduleRequest request{.workers = 2, .microbatches = 0};
    if (name.find("lpp") != std::string::npos) request.groups = 1;
    EXPECT_THAT(refusal(name, request), HasSubstr("0 micro-batches")) << name;
    request.microbatches = 1;
    request.workers = 0;
    EXPECT_NE(refusal(name, request), "") << name;
    request.workers = -4;
    EXPECT_NE(refusal(name, request), "") << name;
    request.graph = StageGraph::chain(2);
    EXPECT_NE(refusal(name, request), "") << name;
    request.workers = 0;
    EXPECT_NE(refusal(name, request), "") << name;
  }
}

TEST(Registry, PlacesJobsAsTheSourceDefines) {
  for (int groups = 1; groups <= 4; ++groups) {
    for (int per_group = 1; per_group <= 4; ++per_group) {
      const int workers = groups * per_group;
      for (const int stages : {1, 2, 4, 5, 9}) {
        ScheduleRequest request{.workers = workers, .microbatches = 7, .graph = StageGraph::chain(stages)};
        const auto ddp = make_schedule("ddp", request);
        const auto fsdp = make_schedule("fsdp", request);
        request.groups = groups;
        const auto lpp = make_schedule("lpp", request);
        const auto fslpp = make_schedule("fslpp", request);
        const auto h = [&](int s, int b) { return (per_group * b) % workers + s % per_group; };
        for (const JobId id : ddp.order()) {
          const auto [s, b, d] = ddp.job(id);
          EXPECT_EQ(ddp.placement(id), (Placement{b % workers, b % workers}));
          EXPECT_EQ(fsdp.placement(id), (Placement{s % workers, b % workers}));
          EXPECT_EQ(lpp.placement(id), (Placement{h(s, b), h(s, b)}));
          EXPECT_EQ(fslpp.placement(id), (Placement{h(s, s), h(s, b)}));
        }
      }
    }
  }
}

/// Properties of the schedules of `all`, on chains, trees and DAGs.
TEST(Registry, EveryNamedScheduleFinishesOnEveryGraph) {
  testing::Random random(8);
  for (int round = 0; round < 300; ++round) {
    const int stages = testing::between(random, 1, 7);
    const int workers = testing::between(random, 1, 6);
    ScheduleRequest request{.workers = workers,
                            .microbatches = testing::between(random, 1, 9),
                            .graph = testing::random_graph(random, stages)};
    for (const auto& name : all) {
      ScheduleRequest mine = request;
      if (name.find("lpp") != std::string::npos) {
        std::vector<int> divisors;
        for (int g = 1; g <= workers; ++g) {
          if (workers % g == 0) divisors.push_back(g);
        }
        mine.groups = divisors[index(testing::between(random, 0, static_cast<int>(divisors.size()) - 1))];
      } else if (std::ranges::find(by_stage, name) != by_stage.end()) {
        for (int s = 0; s < stages; ++s)
          mine.stage_workers.push_back(testing::between(random, 0, workers - 1));
      }
      const auto schedule = make_schedule(name, mine);
      EXPECT_EQ(schedule.name(), name);
      EXPECT_EQ(schedule.discipline(), Discipline::ordered);
      EXPECT_FALSE(schedule.split_backward());
      EXPECT_EQ(schedule.graph(), *mine.graph);
      EXPECT_EQ(schedule.workers(), workers);
      EXPECT_EQ(check(schedule).problem, "") << name;
      EXPECT_GT(simulate(schedule).makespan, 0);
      EXPECT_EQ(schedule, make_schedule(name, mine)) << "not a function of the request";
    }
  }
}

TEST(Registry, GPipeRunsBackwardInReverse) {
  const auto schedule = make_schedule("gpipe", {.workers = 3, .microbatches = 4});
  for (int w = 0; w < 3; ++w) {
    std::string order;
    for (const JobId id : schedule.order(w)) {
      order +=
          std::string(to_string(schedule.job(id).pass)) + std::to_string(schedule.job(id).microbatch) + " ";
    }
    EXPECT_EQ(order, "F0 F1 F2 F3 BW3 BW2 BW1 BW0 ");
  }
}

TEST(Registry, OneForwardOneBackwardAlternatesAfterItsWarmUp) {
  const auto order_of = [](const std::string& name, int worker) {
    const auto schedule = make_schedule(name, {.workers = 3, .microbatches = 5});
    std::string order;
    for (const JobId id : schedule.order(worker)) {
      order +=
          (schedule.job(id).pass == Pass::F ? "F" : "B") + std::to_string(schedule.job(id).microbatch) + " ";
    }
    return order;
  };
  EXPECT_EQ(order_of("1f1b", 0), "F0 F1 F2 B0 F3 B1 F4 B2 B3 B4 ");
  EXPECT_EQ(order_of("1f1b", 1), "F0 F1 B0 F2 B1 F3 B2 F4 B3 B4 ");
  EXPECT_EQ(order_of("1f1b", 2), "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 ");
  EXPECT_EQ(order_of("eager-1f1b", 0), "F0 F1 F2 F3 F4 B0 B1 B2 B3 B4 ");
  EXPECT_EQ(order_of("eager-1f1b", 1), "F0 F1 F2 B0 F3 B1 F4 B2 B3 B4 ");
  EXPECT_EQ(order_of("eager-1f1b", 2), "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 ");
}

}  // namespace
}  // namespace starpipe::plan
