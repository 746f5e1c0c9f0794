// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/orders/finer.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::plan {
namespace {

void require_parts(const Schedule& schedule, const StageGraph& finer, std::span<const StagePart> parts,
                   int shards) {
  if (std::cmp_not_equal(parts.size(), finer.size())) throw std::logic_error("a stage is no part of any");
  for (const StagePart& part : parts) {
    const bool known = part.stage >= 0 && part.stage < schedule.stages();
    if (!known || part.shard < 0 || part.shard >= shards) throw std::logic_error("a part of no stage");
  }
}

}  // namespace

Schedule with_parts(const Schedule& schedule, const StageGraph& finer, std::span<const StagePart> parts,
                    int shards) {
  require_parts(schedule, finer, parts, shards);
  if (schedule.discipline() != Discipline::ordered) {
    throw InputError(
        fmt::format("{}: only an ordered schedule has stages of several parts", schedule.name()));
  }
  const auto whole = [&](const Job& job) {
    return schedule.find({parts[index(job.stage)].stage, job.microbatch, job.pass}).value();
  };
  return Schedule({.name = schedule.name(),
                   .graph = finer,
                   .microbatches = schedule.microbatches(),
                   .workers = schedule.workers() * shards,
                   .split_backward =
                       [&](int stage, int microbatch) {
                         return schedule.split_backward(parts[index(stage)].stage, microbatch);
                       },
                   .placement =
                       [&](const Job& job) {
                         const Placement at = schedule.placement(whole(job));
                         const int shard = parts[index(job.stage)].shard;
                         return Placement{.weights = at.weights * shards + shard,
                                          .compute = at.compute * shards + shard};
                       },
                   .priority =
                       [&](const Job& job) {
                         const int depth = finer.depth(job.stage);
                         const int place = job.pass == Pass::F ? depth : finer.length() - 1 - depth;
                         return std::int64_t{schedule.turn(whole(job))} * finer.length() + place;
                       },
                   .recompute = schedule.recompute()});
}

Costs costs_of_whole_stages(const Costs& costs, const StageGraph& finer, std::span<const StagePart> parts,
                            int stages) {
  std::map<std::pair<int, int>, Durations> side_by_side;  // by stage and depth: the longest
  Costs whole = costs;
  whole.shared.clear();
  whole.sizes.assign(index(stages), {});
  whole.durations.assign(index(stages), {.F = 0, .B = 0, .W = 0});
  for (int s = 0; s < finer.size(); ++s) {
    const int stage = parts[index(s)].stage;
    Durations& longest = side_by_side.try_emplace({stage, finer.depth(s)}, 0, 0, 0).first->second;
    for (const auto& [name, time] : pass_times)
      longest.*time = std::max(longest.*time, costs.duration(s).*time);
    whole.sizes[index(stage)] = costs.size(s);
  }
  for (const auto& [place, longest] : side_by_side) {
    for (const auto& [name, time] : pass_times) whole.durations[index(place.first)].*time += longest.*time;
  }
  return whole;
}

}  // namespace starpipe::plan
