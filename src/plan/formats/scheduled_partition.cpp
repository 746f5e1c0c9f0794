// SPDX-License-Identifier: Apache-2.0
#include "plan/formats/scheduled_partition.hpp"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/search/schedule_demands.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/simulate/simulate.hpp"

namespace starpipe::plan {
namespace {

constexpr std::int64_t most_jobs = 2'000'000;

/// The message of a schedule that refuses its request, `PART: WHY`. The option that asked for the part takes
/// the place of the part, which has no option of its own here.
std::string refusal(const ScheduledPartition& options, std::string_view message) {
  const bool chunks = message.starts_with("stages: ") && options.chunks;
  const bool groups = message.starts_with("groups: ");
  return fmt::format("{}: {}{}", chunks ? "chunks" : "schedule", message.substr(message.find(": ") + 2),
                     groups ? ", which `partition` cannot give" : "");
}

/// The named schedule for `stages` stages.
Schedule make(const ScheduledPartition& options, int stages, const std::vector<int>& stage_workers) {
  try {
    return make_schedule(options.schedule, {.workers = options.request.workers,
                                            .microbatches = options.microbatches,
                                            .graph = StageGraph::chain(stages),
                                            .stage_workers = stage_workers});
  } catch (const RequestError& error) {
    throw RequestError(refusal(options, error.what()));
  }
}

bool takes_placement(const ScheduledPartition& options) {
  try {
    make(options, 1, {0});
    return true;
  } catch (const InputError&) {
    return false;
  }
}

/// Number of stages on each worker: --chunks, or else the schedule's own number.
int chunks_of(const ScheduledPartition& options) {
  return options.chunks.value_or(default_stages(find_schedule(options.schedule), 1));
}

/// Sets which stages a worker may get, and how many stashes of each stage the schedule holds.
void follow_schedule(ScheduledPartition& options) {
  PartitionRequest& request = options.request;
  const int units = static_cast<int>(request.units.size());
  const int chunks = chunks_of(options);
  const bool free = takes_placement(options);
  if (options.general && !free) {
    throw RequestError(
        fmt::format("general: {} has a placement of its own (1f1b takes any)", options.schedule));
  }
  if (options.general && options.chunks) throw RequestError("chunks: does not apply to --general");
  if (options.layout && (options.general || chunks == 1)) {
    throw RequestError("layout: applies to --chunks of 2 or more");
  }
  const int stages = options.general || (free && chunks == 1)
                         ? std::min(units, options.general ? units : request.workers)
                         : request.workers * chunks;
  if (std::int64_t{stages} * options.microbatches > most_jobs) {
    throw RequestError(
        fmt::format("microbatches: {} micro-batches of {} stages are too many jobs to simulate",
                    options.microbatches, stages));
  }
  if (stages > units) {
    throw RequestError(fmt::format("units: {} units do not make {} stages, {} on each of {} workers", units,
                                   stages, chunks, request.workers));
  }
  const Layout layout = options.layout.value_or(Layout::loop);
  std::vector<int> workers;
  if (free && chunks > 1) workers = layout_workers(layout, request.workers, chunks);
  if (free && chunks == 1) {
    for (int s = 0; s < stages; ++s) workers.push_back(s % request.workers);
  }
  const Schedule schedule = make(options, stages, workers);
  request.stashes = stashes_held(schedule);
  request.allocation = options.general       ? Allocation::general
                       : free && chunks == 1 ? Allocation::contiguous
                                             : Allocation::placed;
  if (schedule.split_backward()) {  // B's part of the stash also lasts until W
    for (UnitCosts& unit : request.units) unit.sizes.stash += unit.sizes.gradient_stash;
  }
  if (request.allocation != Allocation::placed) return;
  const auto placed = stage_workers_of(schedule);
  if (!placed) {
    throw RequestError(
        fmt::format("schedule: {} computes a stage on several workers, so its stages cannot be placed",
                    options.schedule));
  }
  if (options.layout && *placed != layout_workers(layout, request.workers, chunks)) {
    throw RequestError(fmt::format("layout: {} has a layout of its own, different from {}", options.schedule,
                                   to_string(layout)));
  }
  request.stage_workers = *placed;
}

}  // namespace

PartitionResult partition_for(const ScheduledPartition& asked) {
  ScheduledPartition options = asked;
  follow_schedule(options);
  const PartitionRequest& request = options.request;
  Partition found = partition(request);
  std::vector<int> kinds;
  for (const int worker : found.stage_workers) kinds.push_back(request.kinds[index(worker)]);
  Costs costs = stage_costs(request.units, found.cuts, kinds, request.shared);
  costs.links = request.links;
  const bool placed = request.allocation != Allocation::placed || takes_placement(options);
  const int stages = static_cast<int>(found.stage_workers.size());
  Timeline timeline =
      simulate(make(options, stages, placed ? found.stage_workers : std::vector<int>{}), costs);
  return {request, std::move(found), std::move(costs), std::move(timeline)};
}

}  // namespace starpipe::plan
