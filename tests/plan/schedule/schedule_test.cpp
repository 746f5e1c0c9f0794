// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/schedule/schedule.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "starpipe/base/error.hpp"
#include "support/message_of.hpp"
#include "support/random_schedules.hpp"

namespace starpipe::plan {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

ScheduleSpec two_by_two() {
  ScheduleSpec spec;
  spec.name = "two by two";
  spec.graph = StageGraph::chain(2);
  spec.microbatches = 2;
  spec.workers = 2;
  spec.placement = [](const Job& j) { return Placement{j.stage, j.stage}; };
  spec.priority = [](const Job&) { return 0; };
  return spec;
}

std::vector<Job> preds(const Schedule& schedule, const Job& job) {
  std::vector<Job> result;
  schedule.for_each_pred(*schedule.find(job), [&](JobId id) { result.push_back(schedule.job(id)); });
  return result;
}

std::vector<Job> succs(const Schedule& schedule, const Job& job) {
  std::vector<Job> result;
  schedule.for_each_succ(*schedule.find(job), [&](JobId id) { result.push_back(schedule.job(id)); });
  return result;
}

TEST(JobNames, GoBothWays) {
  for (const auto pass : {Pass::F, Pass::B, Pass::W, Pass::BW}) EXPECT_EQ(parse_pass(to_string(pass)), pass);
  EXPECT_EQ(to_string(Pass::BW), "BW");
  EXPECT_EQ(to_string(Job{2, 5, Pass::F}), "F(2,5)");
  EXPECT_THAT(message_of([] { parse_pass("f"); }), HasSubstr("'f'"));
  for (const auto d : {Discipline::greedy, Discipline::bounded, Discipline::ordered}) {
    EXPECT_EQ(parse_discipline(to_string(d)), d);
  }
  EXPECT_THAT(message_of([] { parse_discipline("lifo"); }),
              AllOf(HasSubstr("lifo"), HasSubstr("greedy"), HasSubstr("bounded"), HasSubstr("ordered")));
}

TEST(Schedule, FusedByDefault) {
  const Schedule schedule(two_by_two());

  EXPECT_FALSE(schedule.split_backward());
  EXPECT_EQ(schedule.job_count(), 8U);
  EXPECT_EQ(schedule.id_count(), 8U);
  EXPECT_EQ(schedule.job(schedule.forward(1, 0)), (Job{1, 0, Pass::F}));
  EXPECT_EQ(schedule.job(schedule.backward(1, 1)), (Job{1, 1, Pass::BW}));
  EXPECT_EQ(schedule.weight_gradient(0, 1), schedule.backward(0, 1));
  EXPECT_FALSE(schedule.find({0, 0, Pass::B}));
  EXPECT_FALSE(schedule.find({0, 0, Pass::W}));
  EXPECT_FALSE(schedule.find({2, 0, Pass::F}));
  EXPECT_FALSE(schedule.find({-1, 0, Pass::F}));
  EXPECT_FALSE(schedule.find({0, 2, Pass::F}));
  EXPECT_FALSE(schedule.find({0, -1, Pass::F}));
}

TEST(Schedule, SplitsSomeBackwardPassesAndNotOthers) {
  auto spec = two_by_two();
  spec.split_backward = [](int s, int b) { return s == 1 && b == 0; };
  const Schedule schedule(spec);

  EXPECT_TRUE(schedule.split_backward());
  EXPECT_TRUE(schedule.split_backward(1, 0));
  EXPECT_FALSE(schedule.split_backward(0, 0));
  EXPECT_EQ(schedule.job_count(), 9U);
  EXPECT_TRUE(schedule.find({1, 0, Pass::B}));
  EXPECT_TRUE(schedule.find({1, 0, Pass::W}));
  EXPECT_FALSE(schedule.find({1, 0, Pass::BW}));
  EXPECT_TRUE(schedule.find({0, 0, Pass::BW}));
  EXPECT_EQ(schedule.job(schedule.weight_gradient(0, 0)).pass, Pass::BW);
  EXPECT_THAT(preds(schedule, {0, 0, Pass::BW}),
              UnorderedElementsAre(Job{0, 0, Pass::F}, Job{1, 0, Pass::B}));
  EXPECT_THAT(preds(schedule, {1, 0, Pass::W}), ElementsAre(Job{1, 0, Pass::B}));
  EXPECT_THAT(succs(schedule, {1, 0, Pass::B}),
              UnorderedElementsAre(Job{1, 0, Pass::W}, Job{0, 0, Pass::BW}));
}

TEST(Schedule, DependenciesFollowTheGraph) {
  auto spec = two_by_two();
  spec.graph = StageGraph(3, {{0, 2}, {1, 2}});
  spec.workers = 3;
  const Schedule schedule(spec);

  EXPECT_THAT(preds(schedule, {0, 1, Pass::F}), IsEmpty());
  EXPECT_THAT(preds(schedule, {2, 1, Pass::F}), ElementsAre(Job{0, 1, Pass::F}, Job{1, 1, Pass::F}));
  EXPECT_THAT(preds(schedule, {2, 0, Pass::BW}), ElementsAre(Job{2, 0, Pass::F}));
  EXPECT_THAT(succs(schedule, {2, 0, Pass::BW}),
              UnorderedElementsAre(Job{0, 0, Pass::BW}, Job{1, 0, Pass::BW}));
  EXPECT_EQ(schedule.pred_count(*schedule.find({0, 0, Pass::BW})), 2);
}

TEST(Schedule, EqualPrioritiesGoByMicrobatchStagePass) {
  const Schedule schedule(two_by_two());

  std::vector<Job> order;
  for (const JobId id : schedule.order()) order.push_back(schedule.job(id));
  EXPECT_THAT(order,
              ElementsAre(Job{0, 0, Pass::F}, Job{0, 0, Pass::BW}, Job{1, 0, Pass::F}, Job{1, 0, Pass::BW},
                          Job{0, 1, Pass::F}, Job{0, 1, Pass::BW}, Job{1, 1, Pass::F}, Job{1, 1, Pass::BW}));
}

TEST(Schedule, AsksForEachPlacementAndPriorityOnce) {
  auto spec = two_by_two();
  std::map<Job, int> placed, ranked;
  spec.placement = [&](const Job& j) {
    ++placed[j];
    return Placement{0, 0};
  };
  spec.priority = [&](const Job& j) {
    ++ranked[j];
    return 0;
  };
  const Schedule schedule(spec);

  EXPECT_EQ(placed.size(), schedule.job_count());
  EXPECT_EQ(placed, ranked);
  for (const auto& [job, times] : placed) EXPECT_EQ(times, 1) << to_string(job);
}

TEST(Schedule, WithChangesOnlyDisciplineAndLimits) {
  const Schedule schedule(two_by_two());
  const Schedule bounded = schedule.with(Discipline::bounded, {2, 3});

  EXPECT_EQ(schedule.discipline(), Discipline::ordered);
  EXPECT_EQ(bounded.discipline(), Discipline::bounded);
  EXPECT_THAT(bounded.memory_limits(), ElementsAre(2, 3));
  EXPECT_NE(schedule, bounded);
  EXPECT_EQ(schedule, bounded.with(Discipline::ordered));
  EXPECT_EQ(schedule.order().data(), bounded.order().data()) << "the two share their tables";
  EXPECT_THAT(message_of([&] { static_cast<void>(schedule.with(Discipline::bounded, {1})); }),
              AllOf(HasSubstr("1 memory limits"), HasSubstr("2 workers")));
}

TEST(Schedule, RefusesIncompleteSpecs) {
  const auto change = [](auto&& edit) {
    return message_of([&] {
      auto spec = two_by_two();
      edit(spec);
      const Schedule schedule(spec);
    });
  };

  EXPECT_THAT(change([](ScheduleSpec& s) { s.microbatches = 0; }),
              AllOf(HasSubstr("two by two"), HasSubstr("0 micro-batches")));
  EXPECT_THAT(change([](ScheduleSpec& s) { s.workers = -1; }), HasSubstr("-1 workers"));
  EXPECT_THAT(change([](ScheduleSpec& s) { s.placement = nullptr; }), HasSubstr("w and n"));
  EXPECT_THAT(change([](ScheduleSpec& s) { s.priority = nullptr; }), HasSubstr("w and n"));
  EXPECT_THAT(change([](ScheduleSpec& s) {
                s.memory_limits = {1, 2, 3};
              }),
              HasSubstr("3 memory limits for 2 workers"));
  EXPECT_EQ(change([](ScheduleSpec&) {}), "");
}

TEST(Schedule, RefusesMoreJobsThanItCanNumber) {
  auto spec = two_by_two();
  spec.graph = StageGraph::chain(1 << 16);
  spec.microbatches = 1 << 15;
  EXPECT_THAT(message_of([&] { const Schedule schedule(spec); }), HasSubstr("too many jobs"));
}

TEST(Schedule, JobOnAWorkerThatDoesNotExistIsInNoWorkersOrder) {
  auto spec = two_by_two();
  spec.placement = [](const Job& j) { return Placement{0, j.stage == 0 ? 7 : 1}; };
  const Schedule schedule(spec);

  EXPECT_THAT(schedule.order(0), IsEmpty());
  EXPECT_THAT(schedule.order(7), IsEmpty());
  EXPECT_THAT(schedule.order(-1), IsEmpty());
  EXPECT_EQ(schedule.order(1).size(), 4U);
  EXPECT_EQ(schedule.order().size(), 8U);
}

TEST(Schedule, RandomSchedulesAreConsistent) {
  testing::Random random(1);
  for (int round = 0; round < 400; ++round) {
    const ScheduleSpec spec = testing::random_spec(random);
    const Schedule schedule(spec);
    std::set<JobId> jobs;
    for (int b = 0; b < spec.microbatches; ++b) {
      for (int s = 0; s < spec.graph.size(); ++s) {
        const bool split = spec.split_backward && spec.split_backward(s, b);
        EXPECT_EQ(schedule.split_backward(s, b), split);
        for (const Pass pass : {Pass::F, Pass::B, Pass::W, Pass::BW, Pass::R}) {
          const Job job{s, b, pass};
          const bool remade = spec.home && spec.home(s, b) == Home::none;
          const bool wanted = pass == Pass::F || (pass == Pass::R ? remade : (pass == Pass::BW) != split);
          const auto id = schedule.find(job);
          ASSERT_EQ(id.has_value(), wanted) << to_string(job);
          if (!id) continue;
          EXPECT_TRUE(schedule.exists(*id));
          EXPECT_EQ(schedule.job(*id), job);
          EXPECT_EQ(schedule.placement(*id), spec.placement(job));
          EXPECT_EQ(schedule.compute(*id), spec.placement(job).compute);
          EXPECT_TRUE(jobs.insert(*id).second);
        }
      }
    }
    EXPECT_EQ(jobs.size(), schedule.job_count());
    std::size_t existing = 0;
    for (JobId id = 0; id < schedule.id_count(); ++id) existing += schedule.exists(id) ? 1 : 0;
    EXPECT_EQ(existing, schedule.job_count());

    // order(): sorted by (n, micro-batch, stage, pass); turn() is its inverse.
    const auto order = schedule.order();
    EXPECT_EQ(std::set<JobId>(order.begin(), order.end()), jobs);
    for (std::uint32_t r = 0; r < order.size(); ++r) {
      EXPECT_EQ(schedule.turn(order[r]), r);
      if (r == 0) continue;
      const auto key = [&](JobId id) {
        const Job j = schedule.job(id);
        // F, R, B, W
        const int pass = j.pass == Pass::F ? -2 : j.pass == Pass::R ? -1 : static_cast<int>(j.pass);
        return std::tuple(spec.priority(j), j.microbatch, j.stage, pass);
      };
      EXPECT_LT(key(order[r - 1]), key(order[r]));
    }
    std::size_t on_workers = 0;
    for (int w = 0; w < spec.workers; ++w) {
      const auto mine = schedule.order(w);
      on_workers += mine.size();
      EXPECT_TRUE(std::ranges::is_sorted(mine, {}, [&](JobId id) { return schedule.turn(id); }));
      for (const JobId id : mine) EXPECT_EQ(schedule.compute(id), w);
    }
    EXPECT_EQ(on_workers, schedule.job_count());

    // for_each_succ is the inverse of for_each_pred.
    std::multiset<std::pair<JobId, JobId>> forwards, backwards;
    for (const JobId id : order) {
      int count = 0;
      schedule.for_each_pred(id, [&](JobId before) {
        forwards.emplace(before, id);
        ++count;
      });
      schedule.for_each_succ(id, [&](JobId after) { backwards.emplace(id, after); });
      EXPECT_EQ(schedule.pred_count(id), count);
    }
    EXPECT_EQ(forwards, backwards);
    EXPECT_EQ(schedule, Schedule(spec));
  }
}

}  // namespace
}  // namespace starpipe::plan
