// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/schedules/finer.hpp"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/simulate/simulate.hpp"

namespace starpipe::plan {
namespace {

void require_parts(const Schedule& schedule, const StageGraph& finer, std::span<const StagePart> parts,
                   int workers_each) {
  if (workers_each < 1) throw std::logic_error("a stage has no worker");
  if (std::cmp_not_equal(parts.size(), finer.size())) throw std::logic_error("a stage is not a part");
  for (const StagePart& part : parts) {
    const bool known = part.stage >= 0 && part.stage < schedule.stages();
    if (!known || part.shard < 0) throw std::logic_error("a part of no stage");
  }
}

}  // namespace

Schedule with_parts(const Schedule& schedule, const StageGraph& finer, std::span<const StagePart> parts,
                    int workers_each, ShardPlacement detached) {
  require_parts(schedule, finer, parts, workers_each);
  if (schedule.discipline() != Discipline::ordered) {
    throw InputError(
        fmt::format("{}: only an ordered schedule has stages of several parts", schedule.name()));
  }
  const auto part_of = [&](int stage) -> const StagePart& { return parts[index(stage)]; };
  const auto split_backward = [&](int stage, int microbatch) {
    const bool at_end = finer.pred(stage).empty() || stage == finer.sink();
    return !(part_of(stage).detached && at_end) && schedule.split_backward(part_of(stage).stage, microbatch);
  };
  // The schedule's job of which this one is a part.
  const auto whole = [&](const Job& job) {
    const int stage = part_of(job.stage).stage;
    if (job.pass != Pass::BW || !schedule.split_backward(stage, job.microbatch))
      return schedule.find({stage, job.microbatch, job.pass}).value();
    return job.stage == finer.sink() ? schedule.backward(stage, job.microbatch)
                                     : schedule.weight_gradient(stage, job.microbatch);
  };
  const auto placement = [&](const Job& job) {
    const StagePart& part = part_of(job.stage);
    if (part.detached && detached == ShardPlacement::all && job.stage != finer.sink()) {
      const int worker = part.shard % (schedule.workers() * workers_each);
      return Placement{.weights = worker, .compute = worker};
    }
    const Placement stage = schedule.placement(whole(job));
    const int shard = part.shard % workers_each;
    return Placement{.weights = stage.weights * workers_each + shard,
                     .compute = stage.compute * workers_each + shard};
  };
  const auto priority = [&](const Job& job) {
    const int depth = finer.depth(job.stage);
    const int place = job.pass == Pass::F || job.pass == Pass::R ? depth : finer.length() - 1 - depth;
    return std::int64_t{schedule.turn(whole(job))} * finer.length() + place;
  };
  // R of a detached part would run as soon as its worker is free, long before B.
  const bool late = schedule.recomputes_late() || std::ranges::any_of(parts, &StagePart::detached);
  return Schedule({.name = schedule.name(),
                   .graph = finer,
                   .microbatches = schedule.microbatches(),
                   .slices = schedule.slices(),
                   .workers = schedule.workers() * workers_each,
                   .split_backward = split_backward,
                   .placement = placement,
                   .priority = priority,
                   .home =
                       [&](int stage, int microbatch) {
                         const Home home = schedule.home(part_of(stage).stage, microbatch);
                         // The sum of the shards' losses has no stash to copy.
                         return is_copied(home) && stage == finer.sink() ? Home::worker : home;
                       },
                   .late_recomputation = late});
}

Costs costs_of_whole_stages(const Costs& costs, const StageGraph& finer, std::span<const StagePart> parts,
                            int stages, int workers_each) {
  // By stage and depth: the times of each of its workers.
  std::map<std::pair<int, int>, std::vector<Durations>> side_by_side;
  constexpr Durations none = {.F = 0, .B = 0, .W = 0};
  Costs whole = costs;
  whole.shared.clear();
  whole.sizes.assign(index(stages), {});
  whole.durations.assign(index(stages), none);
  for (int s = 0; s < finer.size(); ++s) {
    if (parts[index(s)].detached) continue;
    const int stage = parts[index(s)].stage;
    const int shard = parts[index(s)].shard;
    auto& workers =
        side_by_side.try_emplace({stage, finer.depth(s)}, index(workers_each), none).first->second;
    for (const auto& [name, time] : pass_times)
      workers[index(shard % workers_each)].*time += costs.duration(s).*time;
    whole.sizes[index(stage)] = costs.size(s);
  }
  for (const auto& [place, workers] : side_by_side) {
    for (const auto& [name, time] : pass_times) {
      const auto longest = std::ranges::max(workers, {}, time);
      whole.durations[index(place.first)].*time += longest.*time;
    }
  }
  return whole;
}

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

/// Returns the costs of the stages when D workers share the shards of each.
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
