// SPDX-License-Identifier: Apache-2.0
// Schedules on which drawings and formats are tried.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "starpipe/base/error.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/schedule/schedule.hpp"

namespace starpipe::plan {

inline Schedule named(const std::string& name, int workers, int microbatches) {
  ScheduleRequest request;
  request.workers = workers;
  request.microbatches = microbatches;
  return make_schedule(name, request);
}

/// A V shape with stages s and 7 - s on worker s % 4, some backward passes split, some fused.
inline Schedule mixed_v() {
  const auto worker = [](int s) { return s < 4 ? s : 7 - s; };
  ScheduleSpec spec;
  spec.name = "mixed-v";
  spec.graph = StageGraph::chain(8);
  spec.microbatches = 6;
  spec.workers = 4;
  spec.split_backward = [](int, int b) { return b % 3 != 2; };
  spec.placement = [=](const Job& job) { return Placement{worker(job.stage), worker(job.stage)}; };
  spec.priority = [](const Job& job) {
    return job.pass == Pass::W ? 1000 + job.microbatch : 2 * job.microbatch + (job.pass == Pass::F ? 0 : 1);
  };
  spec.discipline = Discipline::greedy;
  return Schedule(spec);
}

/// Two encoder branches into one head. B and W of stage 0 run on another worker than F.
inline Schedule two_branches() {
  ScheduleSpec spec;
  spec.name = "two-branches";
  spec.graph = StageGraph(4, {{0, 2}, {1, 2}, {2, 3}});
  spec.microbatches = 3;
  spec.workers = 3;
  spec.split_backward = [](int s, int) { return s == 0; };
  spec.placement = [](const Job& job) {
    if (job.stage == 0 && job.pass == Pass::B) return Placement{0, 1};
    if (job.stage == 0 && job.pass == Pass::W) return Placement{0, 2};
    return Placement{job.stage % 3, job.stage % 3};
  };
  spec.priority = [](const Job& job) { return job.microbatch; };
  spec.discipline = Discipline::greedy;
  return Schedule(spec);
}

/// The two above, and every named schedule for several requests.
inline std::vector<Schedule> examples() {
  std::vector<Schedule> all = {mixed_v(), two_branches()};
  for (const ScheduleEntry& entry : schedule_entries()) {
    for (const auto& [workers, microbatches] : {std::pair{4, 8}, {2, 4}, {4, 4}, {1, 1}}) {
      for (const std::optional<int> groups : {std::optional<int>{}, std::optional<int>{2}}) {
        ScheduleRequest request;
        request.workers = workers;
        request.microbatches = microbatches;
        request.groups = groups;
        try {
          all.push_back(make_schedule(entry.name, request));
        } catch (const InputError&) {
          // The schedule is not defined for this request. It must be defined for some request, see below.
        }
      }
    }
    EXPECT_EQ(all.back().name(), entry.name);
  }
  return all;
}

}  // namespace starpipe::plan
