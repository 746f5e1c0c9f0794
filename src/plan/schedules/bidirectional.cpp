// SPDX-License-Identifier: Apache-2.0
// Two replicas of each stage. Some micro-batches go down the workers, stage s on worker s; the others go up,
// stage s on worker W - 1 - s. The placement alone says which worker holds the weights.
#include <algorithm>

#include <fmt/format.h>

#include "plan/schedules/read_request.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/plan/schedules/orders.hpp"

namespace starpipe::plan {
namespace {

// Returns a block in which F and BW take one cell each.
BuildingBlock block_of_slots(int workers, int microbatches, int interval) {
  return {.workers = workers,
          .stages = workers,
          .microbatches = microbatches,
          .interval = interval,
          .fused_cells = 1,
          .passes = {}};
}

// Adds a micro-batch: F from worker to worker, then BW back. Every second micro-batch of a block goes up.
void add_microbatch(BuildingBlock& block, int microbatch, int start) {
  for (int s = 0; s < block.stages; ++s) {
    const int worker = microbatch % 2 == 0 ? s : block.workers - 1 - s;
    block.passes.push_back({{s, microbatch, Pass::F}, worker, start + s});
    block.passes.push_back({{s, microbatch, Pass::BW}, worker, start + 2 * block.stages - 1 - s});
  }
}

Schedule repeated(const char* name, const ScheduleRequest& request, const BuildingBlock& block) {
  const Grid grid(block, request.microbatches);
  return in_order(name, requested_chain(name, request, 1), request.microbatches, grid.rows());
}

// F of the second micro-batch goes up right behind BW of the first, so each worker holds one stash.
Schedule gems(const ScheduleRequest& request) {
  const int workers = requested_chain("gems", request, 1).size();
  BuildingBlock block = block_of_slots(workers, 2, 2 * workers + 2);
  add_microbatch(block, 0, 0);
  add_microbatch(block, 1, workers + 1);
  return repeated("gems", request, block);
}

const bool registered_gems = register_schedule(
    {.name = "gems",
     .summary = "one micro-batch down, then one up: one stash per worker, two replicas",
     .source = "GEMS, SC 2020; Pipeline Parallelism with Controllable Memory, 2024, fig. 18f",
     .build = gems});

// W / 2 micro-batches each way, as in 1F1B: one direction runs in the odd time slots of the other.
Schedule chimera(const ScheduleRequest& request) {
  const int workers = requested_chain("chimera", request, 1).size();
  if (workers % 2 != 0) {
    throw InputError(fmt::format("chimera needs an even number of workers, not {}", workers));
  }
  BuildingBlock block = block_of_slots(workers, std::min(workers, request.microbatches), 2 * workers);
  for (int b = 0; b < block.microbatches; ++b) add_microbatch(block, b, b / 2 * 2);
  return repeated("chimera", request, block);
}

const bool registered_chimera = register_schedule(
    {.name = "chimera",
     .summary = "two 1F1B pipelines in opposite directions, two replicas",
     .source =
         "Chimera, 2021, arXiv 2107.06925; Pipeline Parallelism with Controllable Memory, 2024, fig. 18g",
     .build = chimera});

}  // namespace
}  // namespace starpipe::plan
