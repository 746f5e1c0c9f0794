// SPDX-License-Identifier: Apache-2.0
#include "plan/schedules/read_request.hpp"

namespace starpipe::plan {
namespace {

// n is the job's time slot in a pipeline with passes of equal length: first all forward passes, then all
// backward passes in reverse.
Schedule gpipe(const ScheduleRequest& request) {
  const StageGraph graph = requested_graph(request);
  const auto slots = std::int64_t{graph.length()} + place_in_group(request, request.microbatches - 1);
  return Schedule({.name = "gpipe",
                   .graph = graph,
                   .microbatches = request.microbatches,
                   .workers = request.workers,
                   .placement = by_stage("gpipe", request, graph),
                   .priority = [graph, request, slots](const Job& job) {
                     const auto forward =
                         std::int64_t{graph.depth(job.stage)} + place_in_group(request, job.microbatch);
                     return job.pass == Pass::F ? forward : 2 * slots - 1 - forward;
                   }});
}

const bool registered = register_schedule(
    {.name = "gpipe",
     .summary =
         "all forward passes, then all backward passes in reverse (PyTorch: in order, at the same times)",
     .source = "GPipe, 2018, arXiv 1811.06965",
     .build = gpipe,
     .alias = "GPipe",
     .chain_of_group = true});

}  // namespace
}  // namespace starpipe::plan
