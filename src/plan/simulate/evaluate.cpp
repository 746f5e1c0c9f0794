// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>

#include "plan/simulate/stashes.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/simulate/simulate.hpp"

namespace starpipe::plan {
namespace {

// A change of what a worker holds.
struct Change {
  double time;
  int stashes;
  std::int64_t bytes;
};

using Changes = std::vector<std::vector<Change>>;  // by worker

// What one (stage, micro-batch) adds: the stash, B's part for W, and with recomputation its output where it
// is an input that is kept.
void hold_stash(const Schedule& schedule, const Costs& costs, const std::vector<Span>& spans, JobId forward,
                Changes& changes) {
  const Job job = schedule.job(forward);
  const StageSizes& size = costs.size(job.stage);
  const auto hold = [&changes](const detail::Kept& kept, int stashes, std::uint64_t size_of) {
    const auto bytes = static_cast<std::int64_t>(size_of);
    changes[static_cast<std::size_t>(kept.worker)].push_back({kept.from, stashes, bytes});
    changes[static_cast<std::size_t>(kept.worker)].push_back({kept.to, -stashes, -bytes});
  };
  detail::for_each_stash(schedule, spans, forward,
                         [&](const detail::Kept& kept) { hold(kept, 1, size.stash); });
  detail::for_each_input_kept(schedule, spans, forward,
                              [&](const detail::Kept& kept) { hold(kept, 0, size.activation); });
  if (schedule.split_backward(job.stage, job.microbatch)) {
    detail::for_each_gradient_stash(schedule, spans, forward,
                                    [&](const detail::Kept& kept) { hold(kept, 0, size.gradient_stash); });
  }
}

}  // namespace

double Durations::of(Pass pass) const {
  switch (pass) {
    case Pass::F:
      return F;
    case Pass::B:
      return B;
    case Pass::W:
      return W;
    case Pass::BW:
      return B + W;
  }
  return 0;
}

Costs with_recomputation(Costs costs) {
  for (Durations& durations : costs.durations) durations.B += durations.F;
  return costs;
}

const Durations& Costs::duration(int stage) const {
  return durations.size() == 1 ? durations.front() : durations[static_cast<std::size_t>(stage)];
}

const StageSizes& Costs::size(int stage) const {
  return sizes.size() == 1 ? sizes.front() : sizes[static_cast<std::size_t>(stage)];
}

std::vector<std::vector<MemoryStep>> memory_over_time(const Schedule& schedule, const Costs& costs,
                                                      const std::vector<Span>& spans) {
  Changes changes(static_cast<std::size_t>(schedule.workers()));
  for (const JobId id : schedule.order()) {
    if (schedule.job(id).pass == Pass::F) hold_stash(schedule, costs, spans, id, changes);
  }
  std::vector<std::vector<MemoryStep>> steps(changes.size());
  for (std::size_t w = 0; w < changes.size(); ++w) {
    std::ranges::sort(changes[w], {}, &Change::time);
    MemoryStep now;
    std::int64_t bytes = 0;
    for (const Change& change : changes[w]) {
      // What ends and what starts at one instant is one step: intervals are half-open.
      if (steps[w].empty() || steps[w].back().time != change.time) steps[w].emplace_back();
      now.time = change.time;
      now.stashes += change.stashes;
      bytes += change.bytes;
      now.bytes = static_cast<std::uint64_t>(bytes);
      steps[w].back() = now;
    }
  }
  return steps;
}

Timeline evaluate(const Schedule& schedule, const Costs& costs, std::vector<Span> spans) {
  Timeline timeline;
  const auto workers = static_cast<std::size_t>(schedule.workers());
  timeline.busy.assign(workers, 0);

  constexpr double infinity = std::numeric_limits<double>::infinity();
  double first = infinity;
  double last = -infinity;
  for (int worker = 0; worker < schedule.workers(); ++worker) {
    double worker_first = infinity;
    double worker_last = -infinity;
    for (const JobId id : schedule.order(worker)) {
      const Span& span = spans[id];
      timeline.busy[static_cast<std::size_t>(worker)] += span.end - span.start;
      worker_first = std::min(worker_first, span.start);
      worker_last = std::max(worker_last, span.end);
    }
    if (worker_first > worker_last) continue;  // an idle worker
    timeline.device_span = std::max(timeline.device_span, worker_last - worker_first);
    first = std::min(first, worker_first);
    last = std::max(last, worker_last);
  }
  timeline.makespan = last - first;
  double busy = 0;
  for (const double time : timeline.busy) busy += time;
  if (timeline.makespan > 0)
    timeline.bubble_fraction = 1 - busy / (static_cast<double>(workers) * timeline.makespan);
  if (timeline.device_span > 0) {
    timeline.device_bubble_fraction = 1 - *std::ranges::max_element(timeline.busy) / timeline.device_span;
  }
  for (const auto& steps : memory_over_time(schedule, costs, spans)) {
    timeline.peak_activations.push_back(0);
    timeline.peak_activation_bytes.push_back(0);
    for (const MemoryStep& step : steps) {
      timeline.peak_activations.back() = std::max(timeline.peak_activations.back(), step.stashes);
      timeline.peak_activation_bytes.back() = std::max(timeline.peak_activation_bytes.back(), step.bytes);
    }
  }
  timeline.received = count_transfers(schedule, costs);
  timeline.spans = std::move(spans);
  return timeline;
}

}  // namespace starpipe::plan
