// SPDX-License-Identifier: Apache-2.0
// A project of somebody else's that plans with starpipe: a chain of two stages, one worker each.
#include <iostream>

#include <starpipe/plan/schedule/check.hpp>
#include <starpipe/plan/schedule/schedule.hpp>
#include <starpipe/version.hpp>

int main() {
  using namespace starpipe::plan;
  ScheduleSpec spec;
  spec.name = "consumer";
  spec.graph = StageGraph::chain(2);
  spec.microbatches = 3;
  spec.workers = 2;
  spec.placement = [](const Job& job) { return Placement{job.stage, job.stage}; };
  spec.priority = [](const Job& job) { return job.microbatch; };
  spec.discipline = Discipline::greedy;
  const Schedule schedule(spec);

  std::cout << "starpipe " << starpipe::version << '\n' << schedule.job_count() << " jobs\n";
  return schedule.job_count() == 12 ? 0 : 1;
}
