// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/partition_output.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/messages.hpp"
#include "base/numbers.hpp"
#include "plan/formats/schedule_values.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/drawing/schedule_text.hpp"

namespace starpipe::cli {
namespace {

std::string_view allocation_name(const plan::PartitionRequest& request) {
  switch (request.allocation) {
    case plan::Allocation::contiguous:
      return "contiguous";
    case plan::Allocation::general:
      return "general";
    case plan::Allocation::placed:
      break;
  }
  return "placed";
}

/// The first and the last unit of a stage.
struct FirstLast {
  std::size_t first;
  std::size_t last;
};

FirstLast units_of(const plan::Partition& found, std::size_t stage, std::size_t units) {
  return {stage == 0 ? 0 : index(found.cuts[stage - 1]),
          (stage == found.cuts.size() ? units : index(found.cuts[stage])) - 1};
}

std::string number(double value) { return fmt::format("{:.6g}", value); }

std::string stage_table(const plan::PartitionResult& result) {
  const plan::Partition& found = result.found;
  const plan::Costs& costs = result.costs;
  const auto& units = result.request.units;
  std::vector<TableRow> rows = {{"stage", "worker", "units", "F", "B", "W", "weights", "stash"}};
  const bool named = std::ranges::any_of(units, [](const auto& unit) { return !unit.name.empty(); });
  if (named) rows.front().emplace_back("first");
  for (std::size_t s = 0; s < found.stage_workers.size(); ++s) {
    const auto [first, last] = units_of(found, s, units.size());
    const plan::Durations& time = costs.durations[s];
    std::uint64_t weights = costs.sizes[s].weights;
    for (const plan::SharedWeights& shared : costs.shared)
      weights += std::cmp_equal(shared.stages.front(), s) ? shared.weights : 0;
    rows.push_back({std::to_string(s), std::to_string(found.stage_workers[s]),
                    first == last ? std::to_string(first) : fmt::format("{}-{}", first, last), number(time.F),
                    number(time.B), number(time.W), bytes_text(weights), bytes_text(costs.sizes[s].stash)});
    if (named) rows.back().push_back(units[first].name);
  }
  return table_text(rows);
}

/// One bar for each worker: # for its computation, then ~ for its transfers.
std::string bars(const plan::Partition& found) {
  constexpr std::size_t columns = 50;
  constexpr std::array shown = {TableColumn{Align::left}, TableColumn{Align::left, columns},
                                TableColumn{Align::left}};
  const auto width = [&](double load) {
    return found.bottleneck > 0
               ? static_cast<std::size_t>(std::lround(load / found.bottleneck * static_cast<double>(columns)))
               : 0;
  };
  std::vector<TableRow> rows;
  for (std::size_t w = 0; w < found.loads.size(); ++w) {
    const plan::WorkerLoad& load = found.loads[w];
    const std::size_t compute = width(load.time);
    const std::string memory =
        load.memory > 0 ? ", " + bytes_text(static_cast<std::uint64_t>(load.memory)) : "";
    rows.push_back({fmt::format("worker {}", w),
                    std::string(compute, '#') + std::string(width(load.load()) - compute, '~'),
                    number(load.load()) + memory});
  }
  return table_text(rows, shown);
}

}  // namespace

nlohmann::ordered_json to_json(const ShownPartition& shown) {
  const auto& [result, schedule, microbatches, memory_limits] = shown;
  const auto& [request, found, costs, timeline] = result;
  nlohmann::ordered_json json = {{"workers", request.workers},
                                 {"layers", request.units.size()},
                                 {"allocation", allocation_name(request)},
                                 {"bottleneck", found.bottleneck},
                                 {"lower_bound", found.lower_bound},
                                 {"optimal", found.optimal()},
                                 {"cuts", found.cuts},
                                 {"placement", found.stage_workers}};
  if (memory_limits.size() == 1) json["memory_limit"] = memory_limits.front();
  if (memory_limits.size() > 1) json["memory_limit"] = memory_limits;
  for (std::size_t s = 0; s < found.stage_workers.size(); ++s) {
    std::vector<std::size_t> units;
    std::vector<std::string> names;
    const auto [first, last] = units_of(found, s, request.units.size());
    for (std::size_t l = first; l <= last; ++l) {
      units.push_back(l);
      names.push_back(request.units[l].name);
    }
    nlohmann::ordered_json stage = {{"worker", found.stage_workers[s]}, {"layers", units}, {"names", names}};
    stage.update(plan::durations_json(costs.durations[s]));
    json["stages"].push_back(std::move(stage));
  }
  for (const plan::WorkerLoad& load : found.loads) {
    json["loads"].push_back(
        {{"time", load.time}, {"transfers", load.transfers}, {"load", load.load()}, {"memory", load.memory}});
  }
  json["predicted"] = {{"schedule", schedule},
                       {"microbatches", microbatches},
                       {"makespan", timeline.makespan},
                       {"bubble_fraction", timeline.bubble_fraction},
                       {"device_span", timeline.device_span},
                       {"device_bubble_fraction", timeline.device_bubble_fraction},
                       {"peak_activations", timeline.peak_stashes},
                       {"peak_activation_bytes", timeline.peak_stash_bytes}};
  return json;
}

std::string to_text(const ShownPartition& shown) {
  const auto& [result, schedule, microbatches, memory_limits] = shown;
  const auto& [request, found, costs, timeline] = result;
  const int stages = static_cast<int>(found.stage_workers.size());
  double sum = 0;
  for (const plan::WorkerLoad& load : found.loads) sum += load.load();
  const bool several = request.allocation == plan::Allocation::placed;
  std::string text = fmt::format(
      "{} units on {} workers: {}, {}\n\n", request.units.size(), request.workers,
      counted_text(stages, "stage"),
      several ? fmt::format("{} on each", stages / request.workers) : std::string(allocation_name(request)));
  text += stage_table(result) + "\n" + bars(found);
  text += fmt::format(
      "\nbottleneck            {}{}\n"
      "mean load             {}\n",
      number(found.bottleneck),
      found.optimal() ? ", optimal" : fmt::format(", none is below {}", number(found.lower_bound)),
      number(sum / request.workers));
  const int equal = std::min(request.workers, static_cast<int>(request.units.size()));
  std::vector<int> workers;
  for (int s = 0; s < equal; ++s) workers.push_back(s);
  const auto naive = plan::evaluate_partition(
      request, plan::equal_cuts(static_cast<int>(request.units.size()), equal), workers);
  text += fmt::format("equal unit counts     {}\n", number(naive.bottleneck));
  text += fmt::format("\n{}, {} micro-batches: {}\n", schedule, microbatches,
                      plan::makespan_sentence(timeline, number(timeline.makespan)));
  return text + fmt::format("cuts [{}], placement [{}]\n", fmt::join(found.cuts, ", "),
                            fmt::join(found.stage_workers, ", "));
}

}  // namespace starpipe::cli
