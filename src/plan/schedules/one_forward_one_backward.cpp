// SPDX-License-Identifier: Apache-2.0
#include "plan/schedules/read_request.hpp"

namespace starpipe::plan {
namespace {

// n is the job's time slot in a pipeline of S stages with passes of equal length. In both variants B(s,b) has
// time slot 2S-1-s+2b. F(s,b) has the time slot right after the B that makes room for it, the B of
// `warm_up(s)` micro-batches earlier.
// - 1F1B: F(s,b) has time slot s+2b, and S-s forward passes are in flight on stage s. (Separability warms up
//   with s or s+1 forward passes; the last stage then starves.)
// - eager 1F1B: F(s,b) has time slot 3s+2b-2S+2, and 2(S-s)-1 forward passes are in flight.
Schedule one_forward_one_backward(const ScheduleRequest& request, const char* name,
                                  std::int64_t (*warm_up)(std::int64_t stages, std::int64_t depth)) {
  const StageGraph graph = requested_graph(request);
  const auto stages = std::int64_t{graph.length()};
  return Schedule({.name = name,
                   .graph = graph,
                   .microbatches = request.microbatches,
                   .workers = request.workers,
                   .placement = by_stage(name, request, graph),
                   .priority = [graph, request, stages, warm_up](const Job& job) {
                     const auto depth = std::int64_t{graph.depth(job.stage)};
                     const auto place = std::int64_t{place_in_group(request, job.microbatch)};
                     const auto backward = 2 * stages - 1 - depth + 2 * place;
                     return job.pass == Pass::F ? backward + 1 - 2 * warm_up(stages, depth) : backward;
                   }});
}

const bool registered_1f1b = register_schedule(
    {.name = "1f1b",
     .summary = "one forward, one backward: S - s micro-batches in flight on stage s",
     .source = "PipeDream-Flush, 2020, arXiv 2006.09503; DAPPLE, 2020, arXiv 2007.01045",
     .build =
         [](const ScheduleRequest& request) {
           return one_forward_one_backward(
               request, "1f1b", [](std::int64_t stages, std::int64_t depth) { return stages - depth; });
         },
     .alias = "1F1B",
     .chain_of_group = true});

const bool registered_eager = register_schedule(
    {.name = "eager-1f1b",
     .summary = "1F1B with 2(S - s) - 1 micro-batches in flight, to hide communication",
     .source =
         "On Optimizing the Communication of Model Parallelism, 2022, arXiv 2211.05322; Pipeline Parallelism "
         "with Controllable Memory, 2024, fig. 1b",
     .build =
         [](const ScheduleRequest& request) {
           return one_forward_one_backward(
               request, "eager-1f1b",
               [](std::int64_t stages, std::int64_t depth) { return 2 * (stages - depth) - 1; });
         },
     .chain_of_group = true});

}  // namespace
}  // namespace starpipe::plan
