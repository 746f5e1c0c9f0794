// SPDX-License-Identifier: Apache-2.0
#include "plan/schedules/read_request.hpp"

namespace starpipe::plan {
namespace {

// Worker b mod W runs all stages of micro-batch b, one micro-batch after the other. Unifying Schemes has W =
// B; B > W is gradient accumulation.
Schedule data_parallel(const ScheduleRequest& request, const char* name, bool sharded) {
  refuse_groups(name, request);
  refuse_stage_workers(name, request);
  const StageGraph graph = requested_graph(request);
  const int workers = request.workers;
  const auto length = std::int64_t{graph.length()};
  return Schedule({.name = name,
                   .graph = graph,
                   .microbatches = request.microbatches,
                   .workers = workers,
                   .placement =
                       [workers, sharded](const Job& job) {
                         return Placement{.weights = (sharded ? job.stage : job.microbatch) % workers,
                                          .compute = job.microbatch % workers};
                       },
                   .priority =
                       [graph, length, workers](const Job& job) {
                         const int depth = graph.depth(job.stage);
                         const auto slot = job.pass == Pass::F ? depth : 2 * length - 1 - depth;
                         return std::int64_t{job.microbatch / workers} * 2 * length + slot;
                       }});
}

const bool registered_ddp =
    register_schedule({"ddp", "data parallel: w = (b, b); every worker holds all weights",
                       "Unifying Parallelization Schemes, 2025, w_DDP",
                       [](const ScheduleRequest& request) { return data_parallel(request, "ddp", false); }});

const bool registered_fsdp =
    register_schedule({"fsdp", "fully sharded data parallel: w = (s, b); weights are fetched for use",
                       "Unifying Parallelization Schemes, 2025, w_FSDP",
                       [](const ScheduleRequest& request) { return data_parallel(request, "fsdp", true); }});

}  // namespace
}  // namespace starpipe::plan
