// SPDX-License-Identifier: Apache-2.0
#include "plan/simulate/memory_over_time.hpp"

#include <algorithm>
#include <array>
#include <span>

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

// The changes of all jobs. Decides which data workers keep for backward passes, where, and for how long.
class Changes {
 public:
  Changes(const Schedule& schedule, const Costs& costs, const std::vector<std::vector<JobId>>& order)
      : schedule_(schedule), position_(schedule.id_count()), of_(schedule.id_count()) {
    for (const std::vector<JobId>& row : order) {
      for (std::size_t i = 0; i < row.size(); ++i) position_[row[i]] = static_cast<std::uint32_t>(i);
    }
    for (int s = 0; s < schedule.stages() && !schedule.forward_only(); ++s) {
      for (int b = 0; b < schedule.microbatches(); ++b) add_data_of(s, b, costs.size(s));
    }
  }

  [[nodiscard]] const JobChanges& of(JobId id) const { return of_[id]; }

 private:
  // The data of one stage and micro-batch: its stash; its gradient stash, which B makes for W; and its
  // output, which F and R of the succeeding stages read.
  void add_data_of(int stage, int microbatch, const StageSizes& size) {
    const JobId backward = schedule_.backward(stage, microbatch);
    const JobId last = schedule_.weight_gradient(stage, microbatch);
    keep(std::array{schedule_.stash_maker(stage, microbatch), backward, last}, 1, size.stash);
    if (last != backward) keep(std::array{backward, last}, 0, size.gradient_stash);
    std::vector<JobId> readers;
    for (const int next : schedule_.graph().succ(stage)) {
      if (!schedule_.recomputes(next, microbatch)) continue;
      readers.push_back(schedule_.forward(next, microbatch));
      readers.push_back(schedule_.recomputation(next, microbatch));
    }
    keep(readers, 0, size.activation);
  }

  // Each worker that computes any of `jobs` keeps the datum from the start of the first of its jobs to the
  // end of the last.
  void keep(std::span<const JobId> jobs, int stashes, std::uint64_t size) {
    const auto bytes = static_cast<std::int64_t>(size);
    for (auto job = jobs.begin(); job != jobs.end(); ++job) {
      const auto is_here = [this, worker = schedule_.compute(*job)](JobId id) {
        return schedule_.compute(id) == worker;
      };
      if (std::any_of(jobs.begin(), job, is_here)) continue;
      JobId first = *job;
      JobId last = *job;
      for (const JobId id : jobs) {
        if (!is_here(id)) continue;
        if (position_[id] < position_[first]) first = id;
        if (position_[id] > position_[last]) last = id;
      }
      Change& start = of_[first].start;
      start = {start.stashes + stashes, start.bytes + bytes};
      Change& end = of_[last].end;
      end = {end.stashes - stashes, end.bytes - bytes};
    }
  }

  const Schedule& schedule_;
  std::vector<std::uint32_t> position_;  // by JobId: index in the order of its worker
  std::vector<JobChanges> of_;           // by JobId
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
