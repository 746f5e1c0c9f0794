// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/schedule/forward_passes.hpp"

#include "starpipe/base/index.hpp"
#include "starpipe/plan/schedule/check.hpp"

namespace starpipe::plan {

// A topological order of all jobs, restricted to forward passes, keeps the order of each worker and puts
// every job after its producers. So the new order has no cycle, and neither have rounds one after the other.
Schedule forward_passes(const Schedule& schedule, int microbatches) {
  std::vector<std::int64_t> place(schedule.id_count(), 0);
  std::int64_t next = 0;
  for (const JobId id : topological_order(schedule)) place[id] = next++;
  const auto of_round = [&](const Job& job) {
    return schedule.forward(job.stage, job.microbatch % schedule.microbatches());
  };
  ScheduleSpec spec;
  spec.name = schedule.name();
  spec.graph = schedule.graph();
  spec.microbatches = microbatches;
  spec.workers = schedule.workers();
  spec.placement = [&](const Job& job) { return schedule.placement(of_round(job)); };
  spec.priority = [&](const Job& job) {
    return job.microbatch / schedule.microbatches() * next + place[of_round(job)];
  };
  spec.discipline = schedule.discipline() == Discipline::ordered ? Discipline::ordered : Discipline::greedy;
  return {spec, true};
}

}  // namespace starpipe::plan
