// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/simulate/memory_over_time.hpp"

#include <algorithm>

#include "plan/simulate/stashes.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::plan {
namespace {

// A change of the memory that a worker holds.
struct Change {
  double time;
  int stashes;
  std::int64_t bytes;
};

using Changes = std::vector<std::vector<Change>>;  // by worker

// Adds the changes by the data of one stage and micro-batch, whose F is `forward`: its stash, its gradient
// stash, and with recomputation its output, on the workers that keep the output as an input.
void add_changes(const Schedule& schedule, const Costs& costs, const std::vector<Span>& spans, JobId forward,
                 Changes& changes) {
  const Job job = schedule.job(forward);
  const StageSizes& size = costs.size(job.stage);
  const auto hold = [&changes](const detail::Kept& kept, int stashes, std::uint64_t size_of) {
    const auto bytes = static_cast<std::int64_t>(size_of);
    changes[index(kept.worker)].push_back({kept.from, stashes, bytes});
    changes[index(kept.worker)].push_back({kept.to, -stashes, -bytes});
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

std::vector<std::vector<MemoryStep>> memory_over_time(const Schedule& schedule, const Costs& costs,
                                                      const std::vector<Span>& spans) {
  Changes changes(index(schedule.workers()));
  for (const JobId id : schedule.order()) {
    if (schedule.job(id).pass == Pass::F) add_changes(schedule, costs, spans, id, changes);
  }
  std::vector<std::vector<MemoryStep>> steps(changes.size());
  for (std::size_t w = 0; w < changes.size(); ++w) {
    std::ranges::sort(changes[w], {}, &Change::time);
    MemoryStep now;
    std::int64_t bytes = 0;
    for (const Change& change : changes[w]) {
      // All changes at one instant make one step, because intervals are half-open.
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

}  // namespace starpipe::plan
