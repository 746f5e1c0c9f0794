// SPDX-License-Identifier: Apache-2.0
#include "plan/simulate/memory_over_time.hpp"

#include <algorithm>

#include "plan/simulate/stashes.hpp"

namespace starpipe::plan {
namespace {

// A change of the memory that a worker holds.
struct Change {
  int stashes = 0;
  std::int64_t bytes = 0;

  [[nodiscard]] bool is_none() const { return stashes == 0 && bytes == 0; }
};

// Changes when a job starts and when it ends.
struct JobChanges {
  Change start;
  Change end;
};

// By JobId: how the memory of the job's worker changes.
class Changes {
 public:
  Changes(const Schedule& schedule, const Costs& costs, const std::vector<std::vector<JobId>>& order)
      : schedule_(schedule), costs_(costs), position_(schedule.id_count()), of_(schedule.id_count()) {
    for (const std::vector<JobId>& row : order) {
      for (std::size_t i = 0; i < row.size(); ++i) position_[row[i]] = static_cast<std::uint32_t>(i);
    }
    for (const JobId id : schedule.order()) {
      if (schedule.job(id).pass == Pass::F) add_data_of(id);
    }
  }

  [[nodiscard]] const JobChanges& of(JobId id) const { return of_[id]; }

 private:
  // The data of one stage and micro-batch, whose F is `forward`: its stash, its gradient stash, and with
  // recomputation its output, on the workers that keep the output as an input.
  void add_data_of(JobId forward) {
    const Job job = schedule_.job(forward);
    const StageSizes& size = costs_.size(job.stage);
    const auto hold = [this](const Kept& kept, int stashes, std::uint64_t size_of) {
      const auto bytes = static_cast<std::int64_t>(size_of);
      Change& start = of_[kept.first].start;
      start = {start.stashes + stashes, start.bytes + bytes};
      Change& end = of_[kept.last].end;
      end = {end.stashes - stashes, end.bytes - bytes};
    };
    for_each_stash(schedule_, position_, forward, [&](const Kept& kept) { hold(kept, 1, size.stash); });
    for_each_input_kept(schedule_, position_, forward,
                        [&](const Kept& kept) { hold(kept, 0, size.activation); });
    if (schedule_.split_backward(job.stage, job.microbatch)) {
      for_each_gradient_stash(schedule_, position_, forward,
                              [&](const Kept& kept) { hold(kept, 0, size.gradient_stash); });
    }
  }

  const Schedule& schedule_;
  const Costs& costs_;
  std::vector<std::uint32_t> position_;  // by JobId: index in the order of its worker
  std::vector<JobChanges> of_;
};

}  // namespace

std::vector<std::vector<MemoryStep>> memory_over_time(const Schedule& schedule, const Costs& costs,
                                                      const Timeline& timeline) {
  const Changes changes(schedule, costs, timeline.order);
  std::vector<std::vector<MemoryStep>> steps(timeline.order.size());
  for (std::size_t w = 0; w < steps.size(); ++w) {
    MemoryStep now;
    const auto take = [&](const Change& change, double time, bool joins) {
      if (change.is_none()) return;
      // Measured spans of one worker may overlap by the clock's resolution; steps stay in the order of time.
      now.time = std::max(now.time, time);
      now.stashes += change.stashes;
      now.bytes += static_cast<std::uint64_t>(change.bytes);  // a negative change subtracts, modulo 2^64
      if (joins && !steps[w].empty() && steps[w].back().time == now.time) {
        steps[w].back() = now;
      } else {
        steps[w].push_back(now);
      }
    };
    if (!timeline.order[w].empty()) now.time = timeline.spans[timeline.order[w].front()].start;
    bool after_end = false;  // the last step is the end of a job
    for (const JobId id : timeline.order[w]) {
      const JobChanges& of_job = changes.of(id);
      take(of_job.start, timeline.spans[id].start, after_end);
      after_end = after_end && of_job.start.is_none();
      take(of_job.end, timeline.spans[id].end, false);
      after_end = after_end || !of_job.end.is_none();
    }
  }
  return steps;
}

}  // namespace starpipe::plan
