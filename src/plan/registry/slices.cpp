// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/registry/slices.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/simulate/simulate.hpp"

namespace starpipe::plan {
namespace {

bool places_by_stage(const Schedule& schedule) {
  return std::ranges::all_of(schedule.order(), [&](JobId id) {
    const Job job = schedule.job(id);
    return schedule.placement(id) == schedule.placement(schedule.forward(job.stage, 0));
  });
}

// Returns the schedule in which each job of `whole` becomes K jobs in a row.
Schedule in_rows(const Schedule& whole, int slices) {
  const auto of_whole = [&](const Job& job) {
    return whole.find({job.stage, job.microbatch / slices, job.pass}).value();
  };
  ScheduleSpec spec = whole.spec();
  spec.microbatches = whole.microbatches() * slices;
  spec.slices = slices;
  spec.split_backward = [&](int s, int b) { return whole.split_backward(s, b / slices); };
  spec.placement = [&](const Job& job) { return whole.placement(of_whole(job)); };
  spec.priority = [&](const Job& job) {
    const int slice = job.microbatch % slices;
    return std::int64_t{whole.turn(of_whole(job))} * slices +
           (job.pass == Pass::F ? slice : slices - 1 - slice);
  };
  spec.pairs = false;
  return Schedule(spec);
}

/// Whose F passes come earlier: those of a worker together, in their common order, or those of each stage.
enum class Among : std::uint8_t { worker, stage };

/// Gives jobs of slices the places of the jobs of an ordered schedule whose micro-batches are as many.
class Shifted {
 public:
  /// F passes run `earlier` places earlier.
  Shifted(const Schedule& ordered, int slices, int earlier, Among among)
      : ordered_(ordered), slices_(slices), earlier_(earlier), places_(ordered.id_count(), 0) {
    for (int w = 0; w < ordered.workers(); ++w) {
      std::map<int, std::vector<JobId>> rows;  // by stage
      for (const JobId id : ordered.order(w)) {
        const Job job = ordered.job(id);
        if (job.pass == Pass::F) rows[among == Among::stage ? job.stage : 0].push_back(id);
      }
      for (const auto& [stage, forward] : rows) place_forward(forward);
    }
    for (int s = 0; s < ordered.stages(); ++s) {
      for (int b = 0; b < ordered.microbatches(); b += slices) place_backward(s, b);
    }
  }

  Schedule made() const {
    ScheduleSpec spec = ordered_.spec();
    spec.slices = slices_;
    spec.split_backward = [&](int s, int b) { return ordered_.split_backward(s, instead_of(s, b)); };
    spec.placement = [&](const Job& job) { return ordered_.placement(ordered_.forward(job.stage, 0)); };
    spec.priority = [&](const Job& job) {
      if (job.pass == Pass::F) return places_[ordered_.find(job).value()];
      const Job other = {job.stage, instead_of(job.stage, job.microbatch), job.pass};
      return place(ordered_.find(other).value());
    };
    spec.pairs = false;
    return Schedule(spec);
  }

 private:
  [[nodiscard]] std::int64_t place(JobId id) const {
    return std::int64_t{ordered_.turn(id)} * (earlier_ + 1);
  }

  // Several F come to the place of the first: in their order, before the jobs behind it.
  void place_forward(const std::vector<JobId>& forward) {
    for (std::size_t i = 0; i < forward.size(); ++i) {
      const std::size_t at = i - std::min(i, index(earlier_));
      places_[forward[i]] = place(forward[at]) + static_cast<std::int64_t>(i - at);
    }
  }

  // The last slice takes the place of the backward pass that comes first, and so on.
  void place_backward(int stage, int first) {
    std::vector<int> places;
    for (int b = first; b < first + slices_; ++b) places.push_back(b);
    std::ranges::sort(places, {}, [&](int b) { return ordered_.turn(ordered_.backward(stage, b)); });
    instead_of_.resize(ordered_.id_count(), 0);
    for (int k = 0; k < slices_; ++k)
      instead_of_[ordered_.forward(stage, first + slices_ - 1 - k)] = places[index(k)];
  }

  [[nodiscard]] int instead_of(int stage, int microbatch) const {
    return instead_of_[ordered_.forward(stage, microbatch)];
  }

  const Schedule& ordered_;
  int slices_;
  int earlier_;
  std::vector<std::int64_t> places_;  // of F, by JobId
  std::vector<int> instead_of_;       // by JobId of F: the micro-batch whose places the backward passes take
};

// Returns schedules that can run, with ever smaller shifts: the last one has the smallest shift. A larger one
// may take less time. Empty if no shift can run.
std::vector<Schedule> shifted(const Schedule& parts, int slices, Among among) {
  std::vector<Schedule> found;
  const auto runs = [&](int earlier) {
    Schedule candidate = Shifted(parts, slices, earlier, among).made();
    const bool can_run = check(candidate).ok();
    if (can_run) found.push_back(std::move(candidate));
    return can_run;
  };
  const int step = slices - 1;
  const int most = parts.stages() * parts.microbatches() + slices;
  int large = step;
  while (large < most && !runs(large)) large += step;
  if (found.empty() || large == step) return found;
  for (int small = large - step; large - small > 1;) {
    const int middle = small + (large - small) / 2;
    (runs(middle) ? large : small) = middle;
  }
  return found;
}

}  // namespace

Schedule with_slices(int microbatches, int slices, const std::function<Schedule(int)>& made,
                     const Costs& costs) {
  Schedule whole = made(microbatches);
  if (slices == 1) return whole;
  if (whole.recomputes() || whole.copies() || !whole.memory_limits().empty())
    throw InputError(fmt::format("{}: slices need a schedule without homes and memory limits", whole.name()));
  if (!places_by_stage(whole)) return in_rows(whole, slices);
  Schedule parts = made(microbatches * slices);
  if (parts.discipline() != Discipline::ordered) parts = ordered_as_simulated(parts, Costs{});
  std::optional<Schedule> best;
  double shortest = 0;
  for (const Among among : {Among::worker, Among::stage}) {
    std::vector<Schedule> found = shifted(parts, slices, among);
    std::ranges::reverse(found);  // the later ones hold fewer stashes
    for (Schedule& candidate : found) {
      const double makespan = simulated_makespan(candidate, costs);
      if (best && makespan >= shortest) continue;
      best = std::move(candidate);
      shortest = makespan;
    }
  }
  if (!best)
    throw InputError(fmt::format("{}: does not run the slices of a micro-batch in order", whole.name()));
  return *std::move(best);
}

}  // namespace starpipe::plan
