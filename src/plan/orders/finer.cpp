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
                   int workers_each) {
  if (workers_each < 1) throw std::logic_error("a stage has no worker");
  if (std::cmp_not_equal(parts.size(), finer.size())) throw std::logic_error("a stage is no part of any");
  for (const StagePart& part : parts) {
    const bool known = part.stage >= 0 && part.stage < schedule.stages();
    if (!known || part.shard < 0) throw std::logic_error("a part of no stage");
  }
}

}  // namespace

Schedule with_parts(const Schedule& schedule, const StageGraph& finer, std::span<const StagePart> parts,
                    int workers_each) {
  require_parts(schedule, finer, parts, workers_each);
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
                   .workers = schedule.workers() * workers_each,
                   .split_backward =
                       [&](int stage, int microbatch) {
                         return schedule.split_backward(parts[index(stage)].stage, microbatch);
                       },
                   .placement =
                       [&](const Job& job) {
                         const Placement at = schedule.placement(whole(job));
                         const int own = parts[index(job.stage)].shard % workers_each;
                         return Placement{.weights = at.weights * workers_each + own,
                                          .compute = at.compute * workers_each + own};
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
                            int stages, int workers_each) {
  // By stage and depth: the times of each of its workers.
  std::map<std::pair<int, int>, std::vector<Durations>> side_by_side;
  constexpr Durations none = {.F = 0, .B = 0, .W = 0};
  Costs whole = costs;
  whole.shared.clear();
  whole.sizes.assign(index(stages), {});
  whole.durations.assign(index(stages), none);
  for (int s = 0; s < finer.size(); ++s) {
    const auto [stage, shard] = parts[index(s)];
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

}  // namespace starpipe::plan
