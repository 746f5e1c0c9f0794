// SPDX-License-Identifier: Apache-2.0
#include "plan/schedules/finer.hpp"

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

/// The parts of a schedule's jobs, and where they run.
class Parts {
 public:
  Parts(const Schedule& schedule, const StageGraph& finer, std::span<const StagePart> parts, int workers_each,
        ShardPlacement detached)
      : schedule_(schedule), finer_(finer), parts_(parts), workers_each_(workers_each), detached_(detached) {}

  [[nodiscard]] bool split_backward(int stage, int microbatch) const {
    return !has_one_backward_pass(stage) && schedule_.split_backward(at(stage).stage, microbatch);
  }

  /// The schedule's job of which this one is a part.
  [[nodiscard]] JobId whole(const Job& job) const {
    const int stage = at(job.stage).stage;
    if (job.pass != Pass::BW || !schedule_.split_backward(stage, job.microbatch))
      return schedule_.find({stage, job.microbatch, job.pass}).value();
    return job.stage == finer_.sink() ? schedule_.backward(stage, job.microbatch)
                                      : schedule_.weight_gradient(stage, job.microbatch);
  }

  [[nodiscard]] Placement placement(const Job& job) const {
    const Placement stage = schedule_.placement(whole(job));
    const StagePart& part = at(job.stage);
    if (part.detached && detached_ == ShardPlacement::all && job.stage != finer_.sink()) {
      const int worker = part.shard % (schedule_.workers() * workers_each_);
      return {.weights = worker, .compute = worker};
    }
    const int shard = part.shard % workers_each_;
    return {.weights = stage.weights * workers_each_ + shard,
            .compute = stage.compute * workers_each_ + shard};
  }

  [[nodiscard]] std::int64_t priority(const Job& job) const {
    const int depth = finer_.depth(job.stage);
    const int place = job.pass == Pass::F ? depth : finer_.length() - 1 - depth;
    return std::int64_t{schedule_.turn(whole(job))} * finer_.length() + place;
  }

 private:
  [[nodiscard]] const StagePart& at(int stage) const { return parts_[index(stage)]; }
  [[nodiscard]] bool has_one_backward_pass(int stage) const {
    return at(stage).detached && (finer_.pred(stage).empty() || stage == finer_.sink());
  }

  const Schedule& schedule_;
  const StageGraph& finer_;
  std::span<const StagePart> parts_;
  int workers_each_;
  ShardPlacement detached_;
};

}  // namespace

Schedule with_parts(const Schedule& schedule, const StageGraph& finer, std::span<const StagePart> parts,
                    int workers_each, ShardPlacement detached) {
  require_parts(schedule, finer, parts, workers_each);
  if (schedule.discipline() != Discipline::ordered) {
    throw InputError(
        fmt::format("{}: only an ordered schedule has stages of several parts", schedule.name()));
  }
  const Parts of(schedule, finer, parts, workers_each, detached);
  return Schedule(
      {.name = schedule.name(),
       .graph = finer,
       .microbatches = schedule.microbatches(),
       .workers = schedule.workers() * workers_each,
       .split_backward = [&](int stage, int microbatch) { return of.split_backward(stage, microbatch); },
       .placement = [&](const Job& job) { return of.placement(job); },
       .priority = [&](const Job& job) { return of.priority(job); },
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

}  // namespace starpipe::plan
