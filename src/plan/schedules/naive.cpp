// SPDX-License-Identifier: Apache-2.0
#include "plan/schedules/read_request.hpp"

namespace starpipe::plan {
namespace {

Schedule naive(const ScheduleRequest& request) {
  const StageGraph graph = requested_graph(request);
  const auto length = std::int64_t{graph.length()};
  return Schedule({.name = "naive",
                   .graph = graph,
                   .microbatches = request.microbatches,
                   .workers = request.workers,
                   .placement = by_stage("naive", request, graph),
                   .priority = [graph, length](const Job& job) {
                     const int depth = graph.depth(job.stage);
                     const auto slot = job.pass == Pass::F ? depth : 2 * length - 1 - depth;
                     return std::int64_t{job.microbatch} * 2 * length + slot;
                   }});
}

const bool registered = register_schedule({"naive", "one micro-batch at a time through the pipeline",
                                           "ML at Scale: Pipeline Parallelism, naive pipeline", naive});

}  // namespace
}  // namespace starpipe::plan
