// SPDX-License-Identifier: Apache-2.0
// A chain of 2 W stages folded over W workers: worker 0 has the first stage and the last.
#include <algorithm>

#include <starpipe/plan/registry/plugin.hpp>

using namespace starpipe::plan;

static Schedule folded(const ScheduleRequest& request) {
  if (request.groups) throw starpipe::InputError("folded has no groups");
  if (!request.stage_workers.empty()) throw starpipe::InputError("folded places stages itself");
  const int workers = request.workers;
  const int microbatches = request.microbatches;
  return Schedule({.name = "folded",
                   .graph = *request.graph,
                   .microbatches = microbatches,
                   .workers = workers,
                   .placement =
                       [workers](const Job& job) {
                         const int there = job.stage % (2 * workers);
                         const int worker = std::min(there, 2 * workers - 1 - there);
                         return Placement{.weights = worker, .compute = worker};
                       },
                   // Backward passes come first; of equal passes, the older micro-batch.
                   .priority =
                       [microbatches](const Job& job) {
                         return job.pass == Pass::F ? microbatches + job.microbatch : job.microbatch;
                       },
                   .discipline = Discipline::greedy});
}

STARPIPE_PLUGIN(schedules) {
  schedules.push_back({"folded", "V shape, greedy: backward passes first", "example of a plug-in", folded,
                       /*stages_per_worker=*/2});
}
