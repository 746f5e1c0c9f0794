// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <limits>

#include "starpipe/plan/simulate.hpp"
#include "stashes.hpp"

namespace starpipe::plan {
namespace {

// A change of what a worker holds.
struct Change {
  double time;
  int stashes;
  std::int64_t bytes;
};

class Memory {
 public:
  explicit Memory(int workers) : changes_(static_cast<std::size_t>(workers)) {}

  void hold(int worker, double from, double to, int stashes, std::uint64_t bytes) {
    auto& changes = changes_[static_cast<std::size_t>(worker)];
    const auto signed_bytes = static_cast<std::int64_t>(bytes);
    changes.push_back({from, stashes, signed_bytes});
    changes.push_back({to, -stashes, -signed_bytes});
  }

  void peaks(std::vector<int>& stashes, std::vector<std::uint64_t>& bytes) {
    for (auto& changes : changes_) {
      // At one time what ends goes first: intervals are half-open.
      std::ranges::sort(changes, [](const Change& a, const Change& b) {
        return a.time != b.time ? a.time < b.time : (a.stashes + a.bytes) < (b.stashes + b.bytes);
      });
      int live = 0;
      int most = 0;
      std::int64_t live_bytes = 0;
      std::int64_t most_bytes = 0;
      for (const Change& change : changes) {
        live += change.stashes;
        live_bytes += change.bytes;
        most = std::max(most, live);
        most_bytes = std::max(most_bytes, live_bytes);
      }
      stashes.push_back(most);
      bytes.push_back(static_cast<std::uint64_t>(most_bytes));
    }
  }

 private:
  std::vector<std::vector<Change>> changes_;
};

// Where and when the stash of one (stage, micro-batch) lies, and B's part for W.
void hold_stash(const Schedule& schedule, const Costs& costs, const std::vector<Span>& spans, JobId forward,
                Memory& memory) {
  const Job job = schedule.job(forward);
  const StageSizes& size = costs.size(job.stage);
  const auto hold = [&memory](const detail::Kept& kept, int stashes, std::uint64_t bytes) {
    memory.hold(kept.worker, kept.from, kept.to, stashes, bytes);
  };
  detail::for_each_stash(schedule, spans, forward,
                         [&](const detail::Kept& kept) { hold(kept, 1, size.stash); });
  if (schedule.recompute()) {
    const std::uint64_t inputs = detail::kept_bytes(schedule, costs, job.stage);
    detail::for_each_kept(schedule, spans, forward, [&](const detail::Kept& kept) { hold(kept, 0, inputs); });
  }
  if (schedule.split_backward(job.stage, job.microbatch)) {
    detail::for_each_kept_by_backward(schedule, spans, forward,
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

Timeline evaluate(const Schedule& schedule, const Costs& costs, std::vector<Span> spans) {
  Timeline timeline;
  const auto workers = static_cast<std::size_t>(schedule.workers());
  timeline.busy.assign(workers, 0);
  Memory memory(schedule.workers());

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
      if (schedule.job(id).pass == Pass::F) hold_stash(schedule, costs, spans, id, memory);
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
  memory.peaks(timeline.peak_activations, timeline.peak_activation_bytes);
  timeline.received = count_transfers(schedule, costs);
  timeline.spans = std::move(spans);
  return timeline;
}

}  // namespace starpipe::plan
