// SPDX-License-Identifier: Apache-2.0
#include "plan/schedules/tensor_fold.hpp"

#include <cstdint>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/simulate/simulate.hpp"

namespace starpipe::plan {
namespace {

Durations scaled(const Durations& times, double factor) {
  return {.F = times.F * factor, .B = times.B * factor, .W = times.W * factor};
}

StageSizes size_of_shard(StageSizes size, int shards, bool adds_inputs) {
  const auto t = static_cast<std::uint64_t>(shards);
  for (std::uint64_t* bytes : {&size.stash, &size.gradient_stash, &size.weights, &size.master})
    *bytes = (*bytes + t - 1) / t;
  size.adds_inputs = adds_inputs;
  return size;
}

/// The costs of the stages when D workers share the shards of each.
Costs costs_of_stages_on(const Costs& costs, TensorCut cut) {
  Costs shared_out = costs;
  const int in_turn = (cut.shards + cut.workers_each - 1) / cut.workers_each;
  for (Durations& times : shared_out.durations)
    times = scaled(times, static_cast<double>(in_turn) / cut.shards);
  return shared_out;
}

}  // namespace

TensorFold tensor_fold(const Schedule& schedule, const Costs& costs, TensorCut cut) {
  const auto [shards, workers_each] = cut;
  if (shards < 1 || workers_each < 1 || workers_each > shards)
    throw InputError(fmt::format("a stage cannot be cut into {} shards on {} workers", shards, workers_each));
  if (shards == 1) return {schedule, costs};
  if (!schedule.graph().is_chain())
    throw InputError(fmt::format("{}: only a chain of stages can be cut into shards", schedule.name()));
  if (!costs.shared.empty())
    throw InputError(fmt::format("{}: stages that share weights cannot be cut into shards", schedule.name()));
  std::vector<std::pair<int, int>> edges;
  std::vector<StagePart> parts;
  std::vector<std::vector<int>> side_by_side;
  Costs of_shards = costs;
  of_shards.durations.clear();
  of_shards.sizes.clear();
  for (int s = 0; s < schedule.stages(); ++s) {
    side_by_side.emplace_back();
    for (int k = 0; k < shards; ++k) {
      side_by_side.back().push_back(s * shards + k);
      for (int from = 0; s > 0 && from < shards; ++from)
        edges.emplace_back((s - 1) * shards + from, s * shards + k);
      parts.push_back({.stage = s, .shard = k});
      of_shards.durations.push_back(scaled(costs.duration(s), 1.0 / shards));
      of_shards.sizes.push_back(size_of_shard(costs.size(s), shards, s > 0));
    }
  }
  const int loss = schedule.stages() * shards;
  for (int k = 0; k < shards; ++k) edges.emplace_back(loss - shards + k, loss);
  parts.push_back({.stage = schedule.stages() - 1, .shard = 0});
  of_shards.durations.push_back({.F = 0, .B = 0, .W = 0});
  of_shards.sizes.push_back({.has_weights = false, .adds_inputs = true});

  const StageGraph graph = StageGraph(loss + 1, std::move(edges)).with_shards(std::move(side_by_side));
  const bool ordered = schedule.discipline() == Discipline::ordered;
  const Schedule whole = ordered ? schedule : ordered_as_simulated(schedule, costs_of_stages_on(costs, cut));
  return {with_parts(whole, graph, parts, workers_each), std::move(of_shards)};
}

}  // namespace starpipe::plan
