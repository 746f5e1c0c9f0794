// SPDX-License-Identifier: Apache-2.0
// Schedules for tests.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/schedule/schedule.hpp"

namespace starpipe {

/// The named schedule of a chain; `stages`: 0 for as many as the schedule asks for.
inline plan::Schedule named(const std::string& name, int workers, int microbatches, int stages = 0) {
  plan::ScheduleRequest request{.workers = workers, .microbatches = microbatches};
  if (stages > 0) request.graph = plan::StageGraph::chain(stages);
  return plan::make_schedule(name, request);
}

/// A V shape with stages s and 7 - s on worker s % 4, some backward passes split, some fused.
inline plan::Schedule mixed_v() {
  const auto worker = [](int s) { return s < 4 ? s : 7 - s; };
  plan::ScheduleSpec spec;
  spec.name = "mixed-v";
  spec.graph = plan::StageGraph::chain(8);
  spec.microbatches = 6;
  spec.workers = 4;
  spec.split_backward = [](int, int b) { return b % 3 != 2; };
  spec.placement = [=](const plan::Job& job) {
    return plan::Placement{worker(job.stage), worker(job.stage)};
  };
  spec.priority = [](const plan::Job& job) {
    return job.pass == plan::Pass::W ? 1000 + job.microbatch
                                     : 2 * job.microbatch + (job.pass == plan::Pass::F ? 0 : 1);
  };
  spec.discipline = plan::Discipline::greedy;
  return plan::Schedule(spec);
}

/// Two encoder branches into one head. B and W of stage 0 run on another worker than F.
inline plan::Schedule two_branches() {
  plan::ScheduleSpec spec;
  spec.name = "two-branches";
  spec.graph = plan::StageGraph(4, {{0, 2}, {1, 2}, {2, 3}});
  spec.microbatches = 3;
  spec.workers = 3;
  spec.split_backward = [](int s, int) { return s == 0; };
  spec.placement = [](const plan::Job& job) {
    if (job.stage == 0 && job.pass == plan::Pass::B) return plan::Placement{0, 1};
    if (job.stage == 0 && job.pass == plan::Pass::W) return plan::Placement{0, 2};
    return plan::Placement{job.stage % 3, job.stage % 3};
  };
  spec.priority = [](const plan::Job& job) { return job.microbatch; };
  spec.discipline = plan::Discipline::greedy;
  return plan::Schedule(spec);
}

/// The two above, and every named schedule for several requests.
inline std::vector<plan::Schedule> examples() {
  std::vector<plan::Schedule> all = {mixed_v(), two_branches()};
  for (const plan::ScheduleEntry& entry : plan::schedule_entries()) {
    for (const auto& [workers, microbatches] : {std::pair{4, 8}, {2, 4}, {4, 4}, {1, 1}}) {
      for (const std::optional<int> groups : {std::optional<int>{}, std::optional<int>{2}}) {
        plan::ScheduleRequest request;
        request.workers = workers;
        request.microbatches = microbatches;
        request.groups = groups;
        try {
          all.push_back(plan::make_schedule(entry.name, request));
        } catch (const InputError&) {
          // The schedule is not defined for this request. It must be defined for some request, see below.
        }
      }
    }
    EXPECT_EQ(all.back().name(), entry.name);
  }
  return all;
}

/// The same jobs in another order, with slice and stage (s, b) on worker s + b: all F, then all others.
inline plan::Schedule slices_everywhere(const plan::Schedule& of) {
  plan::ScheduleSpec spec = of.spec();
  spec.name = of.name() + "-everywhere";
  spec.placement = [&](const plan::Job& job) {
    const int worker = (job.stage + job.microbatch) % of.workers();
    return plan::Placement{.weights = job.stage % of.workers(), .compute = worker};
  };
  const std::int64_t all = std::int64_t{of.microbatches()} * of.stages();
  spec.priority = [&](const plan::Job& job) {
    const std::int64_t place = std::int64_t{job.microbatch} * of.stages() + of.graph().depth(job.stage);
    return job.pass == plan::Pass::F ? 2 * place
                                     : 2 * (2 * all - place) + (job.pass == plan::Pass::W ? 1 : 0);
  };
  spec.discipline = plan::Discipline::ordered;
  return plan::Schedule(spec);
}

/// The schedule with all its backward passes split into B and W, with W right behind B.
inline plan::Schedule split(const plan::Schedule& fused) {
  const auto whole = [fused](const plan::Job& job) {
    const auto same = fused.find(job);
    return same ? *same : *fused.find({job.stage, job.microbatch, plan::Pass::BW});
  };
  plan::ScheduleSpec spec;
  spec.name = fused.name() + "-split";
  spec.graph = fused.graph();
  spec.microbatches = fused.microbatches();
  spec.slices = fused.slices();
  spec.workers = fused.workers();
  spec.split_backward = [](int, int) { return true; };
  spec.placement = [=](const plan::Job& job) { return fused.placement(whole(job)); };
  spec.priority = [=](const plan::Job& job) {
    return std::int64_t{2} * fused.turn(whole(job)) + (job.pass == plan::Pass::W ? 1 : 0);
  };
  spec.discipline = fused.discipline();
  return plan::Schedule(spec);
}

/// F and B of a micro-batch on different workers, W on a third, and the weights on a fourth.
inline plan::Schedule scattered(const plan::StageGraph& graph, int workers, int microbatches,
                                bool split_backward) {
  const auto depth = graph.length();
  plan::ScheduleSpec spec;
  spec.name = "scattered";
  spec.graph = graph;
  spec.microbatches = microbatches;
  spec.workers = workers;
  if (split_backward) spec.split_backward = [](int, int) { return true; };
  spec.placement = [workers](const plan::Job& job) {
    const int pass = job.pass == plan::Pass::F ? 0 : job.pass == plan::Pass::W ? 3 : 2;
    return plan::Placement{.weights = (3 * job.stage + 1) % workers,
                           .compute = (job.stage + job.microbatch + pass) % workers};
  };
  spec.priority = [graph, depth](const plan::Job& job) {
    const int d = graph.depth(job.stage);
    const std::int64_t slot =
        job.pass == plan::Pass::F ? 2 * d : 2 * (2 * depth - 1 - d) + (job.pass == plan::Pass::W ? 1 : 0);
    return std::int64_t{4} * depth * job.microbatch + slot;
  };
  return plan::Schedule(spec);
}

/// For each worker, the most stages of one micro-batch whose stashes it makes: the smallest limit that can
/// work. 1 where no stash has a home.
inline std::vector<int> smallest_limits(const plan::Schedule& schedule) {
  std::vector<int> limits(index(schedule.workers()), 1);
  if (schedule.recomputes_all()) return limits;
  for (int b = 0; b < schedule.microbatches(); ++b) {
    std::vector<int> here(limits.size(), 0);
    for (int s = 0; s < schedule.stages(); ++s) {
      const auto w = index(schedule.compute(schedule.stash_maker(s, b)));
      limits[w] = std::max(limits[w], ++here[w]);
    }
  }
  return limits;
}

}  // namespace starpipe
