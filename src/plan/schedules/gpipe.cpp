// SPDX-License-Identifier: Apache-2.0
#include "plan/schedules/read_request.hpp"

namespace starpipe::plan {
namespace {

// n is the job's time slot in a pipeline with passes of equal length: first all forward passes, then all
// backward passes in reverse.
Schedule gpipe(const ScheduleRequest& request) {
  const StageGraph graph = requested_graph(request);
  const auto slots = std::int64_t{graph.length()} + request.microbatches - 1;
  return Schedule({.name = "gpipe",
                   .graph = graph,
                   .microbatches = request.microbatches,
                   .workers = request.workers,
                   .placement = by_stage("gpipe", request, graph),
                   .priority = [graph, slots](const Job& job) {
                     const auto forward = std::int64_t{graph.depth(job.stage)} + job.microbatch;
                     return job.pass == Pass::F ? forward : 2 * slots - 1 - forward;
                   }});
}

const bool registered = register_schedule(
    {"gpipe",
     "all forward passes, then all backward passes in reverse (PyTorch: in order, at the same times)",
     "GPipe, 2018, arXiv 1811.06965", gpipe, 1, "GPipe"});

}  // namespace
}  // namespace starpipe::plan
