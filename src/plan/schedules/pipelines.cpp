// SPDX-License-Identifier: Apache-2.0
// Schedules whose n is a job's time slot in a pipeline in which each pass takes one slot.
#include <algorithm>

#include <fmt/format.h>

#include "plan/schedules/read_request.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::plan {
namespace {

// The time slots of a stage's F and backward pass on a micro-batch.
struct Slots {
  std::int64_t forward;
  std::int64_t backward;
};

// Returns the schedule whose n is given by `slots(depth, number)`: the Slots of a stage at this depth of the
// graph on the group's micro-batch `number`. Micro-batch b is number b / `groups` of its group.
// With `pairs`, jobs of the same slot are pairs.
template <class SlotsOf>
Schedule in_slots(const char* name, const ScheduleRequest& request, int groups,
                  const std::function<Placement(const Job&)>& placement, SlotsOf slots, bool pairs = false) {
  const StageGraph& graph = request.graph.value();
  return Schedule({.name = name,
                   .graph = graph,
                   .microbatches = request.microbatches,
                   .workers = request.workers,
                   .placement = placement,
                   .priority =
                       [&](const Job& job) {
                         const Slots of = slots(std::int64_t{graph.depth(job.stage)},
                                                std::int64_t{job.microbatch / groups});
                         return job.pass == Pass::F ? of.forward : of.backward;
                       },
                   .pairs = pairs});
}

// Does the same with stage s on worker s of a group, or where the request places it.
template <class SlotsOf>
Schedule placed_by_stage(const char* name, const ScheduleRequest& request, SlotsOf slots,
                         bool pairs = false) {
  return in_slots(name, request, request.groups.value_or(1), by_stage(name, request, request.graph.value()),
                  slots, pairs);
}

// Returns the slots of a group that finishes a micro-batch before it begins the next one.
auto one_at_a_time(const ScheduleRequest& request) {
  return [length = std::int64_t{request.graph.value().length()}](std::int64_t depth, std::int64_t number) {
    const std::int64_t first = number * 2 * length;
    return Slots{first + depth, first + 2 * length - 1 - depth};
  };
}

const bool registered_naive =
    register_schedule({.name = "naive",
                       .summary = "one micro-batch at a time through the pipeline",
                       .source = "ML at Scale: Pipeline Parallelism, naive pipeline",
                       .build =
                           [](const ScheduleRequest& request) {
                             return placed_by_stage("naive", request, one_at_a_time(request));
                           },
                       .chain_of_group = true});

// First all forward passes, then all backward passes in reverse.
Schedule gpipe(const ScheduleRequest& request) {
  const auto last = std::int64_t{request.graph.value().length() - 1} +
                    (request.microbatches - 1) / request.groups.value_or(1);
  return placed_by_stage("gpipe", request, [last](std::int64_t depth, std::int64_t number) {
    return Slots{depth + number, 2 * last + 1 - depth - number};
  });
}

const bool registered_gpipe = register_schedule(
    {.name = "gpipe",
     .summary =
         "all forward passes, then all backward passes in reverse (PyTorch: in order, at the same times)",
     .source = "GPipe, 2018, arXiv 1811.06965",
     .build = gpipe,
     .alias = "GPipe",
     .chain_of_group = true});

// In both variants B(s,b) has time slot 2S-1-s+2b in a pipeline of S stages. F(s,b) has the time slot right
// after the B that makes room for it, the B of `warm_up(S - s)` micro-batches earlier.
// - 1F1B: F(s,b) has time slot s+2b, and S-s forward passes are in flight on stage s. (Separability warms up
//   with s or s+1 forward passes; the last stage then starves.)
// - eager 1F1B: F(s,b) has time slot 3s+2b-2S+2, and 2(S-s)-1 forward passes are in flight.
Schedule one_forward_one_backward(const ScheduleRequest& request, const char* name,
                                  std::int64_t (*warm_up)(std::int64_t stages_left)) {
  const auto stages = std::int64_t{request.graph.value().length()};
  return placed_by_stage(name, request, [stages, warm_up](std::int64_t depth, std::int64_t number) {
    const std::int64_t backward = 2 * stages - 1 - depth + 2 * number;
    return Slots{backward + 1 - 2 * warm_up(stages - depth), backward};
  });
}

const bool registered_1f1b = register_schedule(
    {.name = "1f1b",
     .summary = "one forward, one backward: S - s micro-batches in flight on stage s",
     .source = "PipeDream-Flush, 2020, arXiv 2006.09503; DAPPLE, 2020, arXiv 2007.01045",
     .build =
         [](const ScheduleRequest& request) {
           return one_forward_one_backward(request, "1f1b", [](std::int64_t left) { return left; });
         },
     .alias = "1F1B",
     .chain_of_group = true});

const bool registered_seq1f1b = register_schedule(
    {.name = "seq1f1b",
     .summary = "1F1B; with K slices of each micro-batch, S - s + K - 1 slices in flight on stage s",
     .source = "Seq1F1B, 2024, arXiv 2406.03488",
     .build =
         [](const ScheduleRequest& request) {
           return one_forward_one_backward(request, "seq1f1b", [](std::int64_t left) { return left; });
         },
     .chain_of_group = true});

const bool registered_eager = register_schedule(
    {.name = "eager-1f1b",
     .summary = "1F1B with 2(S - s) - 1 micro-batches in flight, to hide communication",
     .source =
         "On Optimizing the Communication of Model Parallelism, 2022, arXiv 2211.05322; Pipeline Parallelism "
         "with Controllable Memory, 2024, fig. 1b",
     .build =
         [](const ScheduleRequest& request) {
           return one_forward_one_backward(request, "eager-1f1b",
                                           [](std::int64_t left) { return 2 * left - 1; });
         },
     .chain_of_group = true});

// F(s,b) and the backward pass of micro-batch b - 2(S-s) + 1 have the same n, so that they are a pair, and
// neither waits for the other on any stage.
Schedule combined(const ScheduleRequest& request) {
  const auto stages = std::int64_t{request.graph.value().length()};
  return placed_by_stage(
      "combined-1f1b", request,
      [stages](std::int64_t depth, std::int64_t number) {
        const std::int64_t backward = 2 * stages - 1 - depth + 2 * number;
        return Slots{backward + 2 - 4 * (stages - depth), backward};
      },
      true);
}

const bool registered_combined = register_schedule(
    {.name = "combined-1f1b",
     .summary = "1F1B with F and the backward pass of another micro-batch at once, 2(S - s) in flight",
     .source = "Megatron-LM, combined_1f1b: overlapped forward and backward passes of expert layers",
     .build = combined,
     .chain_of_group = true});

void refuse_stage_workers(const char* name, const ScheduleRequest& request) {
  if (request.stage_workers.empty()) return;
  throw RequestError(fmt::format("placement: {} places jobs by micro-batch, not by stage", name));
}

// Worker b mod W runs all stages of micro-batch b, and finishes a micro-batch before it begins the next one.
// Unifying Schemes has W = B; B > W is gradient accumulation.
Schedule data_parallel(const ScheduleRequest& request, const char* name, bool sharded) {
  refuse_groups(name, request);
  refuse_stage_workers(name, request);
  const auto placement = [workers = request.workers, sharded](const Job& job) {
    return Placement{.weights = (sharded ? job.stage : job.microbatch) % workers,
                     .compute = job.microbatch % workers};
  };
  return in_slots(name, request, request.workers, placement, one_at_a_time(request));
}

const bool registered_ddp = register_schedule(
    {.name = "ddp",
     .summary = "data parallel: w = (b, b); every worker holds all weights",
     .source = "Unifying Parallelization Schemes, 2025, w_DDP",
     .build = [](const ScheduleRequest& request) { return data_parallel(request, "ddp", false); }});

const bool registered_fsdp = register_schedule(
    {.name = "fsdp",
     .summary = "fully sharded data parallel: w = (s, b); weights are fetched for use",
     .source = "Unifying Parallelization Schemes, 2025, w_FSDP",
     .build = [](const ScheduleRequest& request) { return data_parallel(request, "fsdp", true); }});

// There are G groups of R workers, and group b mod G runs micro-batch b. Each group is a pipeline that runs R
// stages at a time, in loops. A loop starts when the group's first worker is free and the first micro-batch
// has left its last worker. The backward passes run in the reverse order.
Schedule looped(const ScheduleRequest& request, const char* name, bool sharded) {
  refuse_stage_workers(name, request);
  const int per_group = workers_per_group(name, request);
  const int of_group = ceil_div(request.microbatches, *request.groups);
  const auto loop = std::int64_t{std::max(of_group, per_group)};
  const auto slot = [loop, per_group](std::int64_t depth, std::int64_t number) {
    return depth / per_group * loop + depth % per_group + number;
  };
  const std::int64_t last = slot(request.graph.value().length() - 1, of_group - 1);
  const auto h = [per_group, groups = *request.groups](int stage, int microbatch) {
    return microbatch % groups * per_group + stage % per_group;
  };
  const auto placement = [h, sharded](const Job& job) {
    const int compute = h(job.stage, job.microbatch);
    return Placement{.weights = sharded ? h(job.stage, job.stage) : compute, .compute = compute};
  };
  return in_slots(name, request, *request.groups, placement,
                  [slot, last](std::int64_t depth, std::int64_t number) {
                    const std::int64_t forward = slot(depth, number);
                    return Slots{forward, 2 * last + 1 - forward};
                  });
}

const bool registered_lpp = register_schedule(
    {.name = "lpp",
     .summary = "looped pipelines in G groups: w = (h(s,b), h(s,b)), h = (R b mod W) + (s mod R)",
     .source = "Unifying Parallelization Schemes, 2025, w_LPP",
     .build = [](const ScheduleRequest& request) { return looped(request, "lpp", false); }});

// Unifying Schemes prints w_FSLPP as (h(s,b), h(s,s)); with w = (weights, compute) it means the reverse.
const bool registered_fslpp = register_schedule(
    {.name = "fslpp",
     .summary = "looped pipelines, fully sharded: w = (h(s,s), h(s,b))",
     .source = "Unifying Parallelization Schemes, 2025, w_FSLPP",
     .build = [](const ScheduleRequest& request) { return looped(request, "fslpp", true); }});

}  // namespace
}  // namespace starpipe::plan
