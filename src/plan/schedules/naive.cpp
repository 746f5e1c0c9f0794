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
                   .priority = [graph, request, length](const Job& job) {
                     const int depth = graph.depth(job.stage);
                     const auto slot = job.pass == Pass::F ? depth : 2 * length - 1 - depth;
                     return std::int64_t{place_in_group(request, job.microbatch)} * 2 * length + slot;
                   }});
}

const bool registered = register_schedule({.name = "naive",
                                           .summary = "one micro-batch at a time through the pipeline",
                                           .source = "ML at Scale: Pipeline Parallelism, naive pipeline",
                                           .build = naive,
                                           .chain_of_group = true});

}  // namespace
}  // namespace starpipe::plan
