// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <initializer_list>
#include <limits>

#include "starpipe/plan/simulate.hpp"

namespace starpipe::plan {
namespace {

// A change of what a worker holds.
struct Change {
  double time;
  int stashes;
  std::int64_t bytes;
};

using Changes = std::vector<std::vector<Change>>;  // by worker

// What one (stage, micro-batch) adds: the stash, and B's part for W.
void hold_stash(const Schedule& schedule, const Costs& costs, const std::vector<Span>& spans, JobId forward,
                Changes& changes) {
  const Job job = schedule.job(forward);
  const JobId b = schedule.backward(job.stage, job.microbatch);
  const JobId w = schedule.weight_gradient(job.stage, job.microbatch);
  const StageSizes& size = costs.size(job.stage);
  const int home = schedule.compute(forward);
  const int b_worker = schedule.compute(b);
  const int w_worker = schedule.compute(w);

  // From the first to the last of these jobs that `worker` computes.
  const auto hold_on = [&](int worker, std::initializer_list<JobId> jobs, int stashes,
                           std::uint64_t size_of) {
    double start = std::numeric_limits<double>::infinity();
    double end = 0;
    for (const JobId id : jobs) {
      if (schedule.compute(id) != worker) continue;
      start = std::min(start, spans[id].start);
      end = std::max(end, spans[id].end);
    }
    const auto bytes = static_cast<std::int64_t>(size_of);
    changes[static_cast<std::size_t>(worker)].push_back({start, stashes, bytes});
    changes[static_cast<std::size_t>(worker)].push_back({end, -stashes, -bytes});
  };
  hold_on(home, {forward, b, w}, 1, size.stash);
  if (b_worker != home) hold_on(b_worker, {b, w}, 1, size.stash);
  if (w_worker != home && w_worker != b_worker) hold_on(w_worker, {w}, 1, size.stash);
  if (b == w) return;
  hold_on(b_worker, {b, w}, 0, size.gradient_stash);
  if (w_worker != b_worker) hold_on(w_worker, {w}, 0, size.gradient_stash);
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
