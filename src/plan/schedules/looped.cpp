// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "plan/schedules/read_request.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::plan {
namespace {

// G groups of R workers. Each group is a pipeline that loops over the stages; micro-batch b goes to group b
// mod G. n is the time slot of the forward pass within its group. A loop starts when the first worker is free
// and the first micro-batch is back. The backward passes run in the reverse order.
Schedule looped(const ScheduleRequest& request, const char* name, bool sharded) {
  refuse_stage_workers(name, request);
  const int per_group = workers_per_group(name, request);
  const int groups = *request.groups;
  const int workers = request.workers;
  const StageGraph graph = requested_graph(request);
  const int of_group = ceil_div(request.microbatches, groups);
  const auto loop = std::int64_t{std::max(of_group, per_group)};
  const auto slot = [loop, per_group](int depth, int index) {
    return depth / per_group * loop + depth % per_group + index;
  };
  const auto slots = slot(graph.length() - 1, of_group - 1) + 1;
  const auto h = [per_group, workers](int stage, int microbatch) {
    return per_group * microbatch % workers + stage % per_group;
  };
  return Schedule({.name = name,
                   .graph = graph,
                   .microbatches = request.microbatches,
                   .workers = workers,
                   .placement =
                       [h, sharded](const Job& job) {
                         const int compute = h(job.stage, job.microbatch);
                         return Placement{.weights = sharded ? h(job.stage, job.stage) : compute,
                                          .compute = compute};
                       },
                   .priority =
                       [graph, slot, slots, groups](const Job& job) {
                         const auto forward = slot(graph.depth(job.stage), job.microbatch / groups);
                         return job.pass == Pass::F ? forward : 2 * slots - 1 - forward;
                       }});
}

const bool registered_lpp = register_schedule(
    {"lpp", "looped pipelines in G groups: w = (h(s,b), h(s,b)), h = (R b mod W) + (s mod R)",
     "Unifying Parallelization Schemes, 2025, w_LPP",
     [](const ScheduleRequest& request) { return looped(request, "lpp", false); }});

// Unifying Schemes prints w_FSLPP as (h(s,b), h(s,s)); with w = (weights, compute) it means the reverse.
const bool registered_fslpp =
    register_schedule({"fslpp", "looped pipelines, fully sharded: w = (h(s,s), h(s,b))",
                       "Unifying Parallelization Schemes, 2025, w_FSLPP",
                       [](const ScheduleRequest& request) { return looped(request, "fslpp", true); }});

}  // namespace
}  // namespace starpipe::plan
