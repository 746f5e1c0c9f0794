// SPDX-License-Identifier: Apache-2.0
#include "plan/simulate/memory_over_time.hpp"

#include <algorithm>
#include <array>
#include <compare>
#include <span>

#include "starpipe/base/index.hpp"

namespace starpipe::plan {
namespace {

// A change of the memory that a worker holds.
struct Change {
  int stashes = 0;
  std::int64_t bytes = 0;

  [[nodiscard]] bool is_none() const { return stashes == 0 && bytes == 0; }
};

// Changes when a job starts and when it ends. Of a copy, the worker that receives the stash has the change at
// the start, and the worker that sends it the change at the end.
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
      for (int b = 0; b < schedule.microbatches(); ++b) add_data_of(s, b, costs.size(s, b));
    }
    if (schedule.slices() == 1 || schedule.forward_only()) return;
    for (int s = 0; s < schedule.stages(); ++s) {
      for (int b = 0; b < schedule.microbatches(); ++b) add_keys_values_of(s, b, costs);
    }
  }

  [[nodiscard]] const JobChanges& of(JobId id) const { return of_[id]; }

 private:
  // The data of one stage and micro-batch: its stash; its gradient stash, which B makes for W; and its
  // output, which F and R of the succeeding stages read.
  void add_data_of(int stage, int microbatch, const StageSizes& size) {
    const JobId backward = schedule_.backward(stage, microbatch);
    const JobId last = schedule_.weight_gradient(stage, microbatch);
    if (schedule_.copies(stage, microbatch)) {
      const JobId out = schedule_.offload(stage, microbatch);
      const JobId back = schedule_.reload(stage, microbatch);
      hold(schedule_.forward(stage, microbatch), out, 1, size.stash);
      if (schedule_.peer(out)) hold(out, back, 1, size.stash);  // the peer
      hold(back, last, 1, size.stash);
    } else {
      keep(std::array{schedule_.stash_maker(stage, microbatch), backward, last}, 1, size.stash);
    }
    if (last != backward) keep(std::array{backward, last}, 0, size.gradient_stash);
    std::vector<JobId> readers;
    for (const int next : schedule_.graph().succ(stage)) {
      if (!schedule_.recomputes(next, microbatch)) continue;
      readers.push_back(schedule_.forward(next, microbatch));
      readers.push_back(schedule_.recomputation(next, microbatch));
    }
    keep(readers, 0, size.activation);
  }

  // Adds the keys and values of a slice, until later slices and its own B have read them. Adds the gradients
  // of the next slice, until B has read them.
  void add_keys_values_of(int stage, int microbatch, const Costs& costs) {
    if (!costs.size(stage, microbatch).has_keys_values) return;
    std::vector<JobId> readers;
    for (int b = microbatch;; ++b) {
      readers.push_back(schedule_.forward(stage, b));
      readers.push_back(schedule_.backward(stage, b));
      if (schedule_.is_last_slice(b)) break;
    }
    keep(readers, 0, costs.size(stage, microbatch).keys_values);
    if (schedule_.is_last_slice(microbatch)) return;
    keep(std::array{schedule_.backward(stage, microbatch + 1), schedule_.backward(stage, microbatch)}, 0,
         costs.handed_back(schedule_, stage, microbatch));
  }

  // Each worker that computes any of `jobs` keeps the datum from the start of the first of its jobs to the
  // end of the last.
  void keep(std::span<const JobId> jobs, int stashes, std::uint64_t size) {
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
      hold(first, last, stashes, size);
    }
  }

  // A worker of the two jobs holds the datum from the start of the first to the end of the last.
  void hold(JobId first, JobId last, int stashes, std::uint64_t size) {
    const auto bytes = static_cast<std::int64_t>(size);
    Change& start = of_[first].start;
    start = {start.stashes + stashes, start.bytes + bytes};
    Change& end = of_[last].end;
    end = {end.stashes - stashes, end.bytes - bytes};
  }

  const Schedule& schedule_;
  std::vector<std::uint32_t> position_;  // by JobId: index in the order of its worker
  std::vector<JobChanges> of_;           // by JobId
};

// The start or the end of a job.
struct Moment {
  double time;
  bool follows;  // false for the end of a job that took time
  std::uint32_t turn;
  bool is_end;
  JobId job;
  friend auto operator<=>(const Moment&, const Moment&) = default;
};

// Returns the starts and ends of a worker's jobs in the order in which memory changes.
std::vector<Moment> moments(const Schedule& schedule, const Timeline& timeline, int worker) {
  std::vector<Moment> all;
  const auto add = [&](JobId id, double start, double end) {
    all.push_back({start, true, schedule.turn(id), false, id});
    all.push_back({end, start == end, schedule.turn(id), true, id});
  };
  // Measured spans of one worker may overlap by the clock's resolution; moments stay in the order of time.
  double last =
      timeline.order[index(worker)].empty() ? 0 : timeline.spans[timeline.order[index(worker)].front()].start;
  for (const JobId id : timeline.order[index(worker)]) {
    const double start = std::max(last, timeline.spans[id].start);
    last = std::max(start, timeline.spans[id].end);
    add(id, start, last);
  }
  if (schedule.copies_of(worker).empty()) return all;
  for (const JobId id : schedule.copies_of(worker)) {
    const bool takes = schedule.channel(id, worker) == Channel::in;
    const Span& span = timeline.spans[id];
    all.push_back(
        {takes ? span.start : span.end, takes || span.end == span.start, schedule.turn(id), !takes, id});
  }
  std::ranges::sort(all);
  return all;
}

}  // namespace

std::vector<std::vector<MemoryStep>> memory_over_time(const Schedule& schedule, const Costs& costs,
                                                      const Timeline& timeline) {
  const Changes changes(schedule, costs, timeline.order);
  std::vector<std::vector<MemoryStep>> steps(timeline.order.size());
  for (int w = 0; w < schedule.workers(); ++w) {
    std::vector<MemoryStep>& of_worker = steps[index(w)];
    MemoryStep now;
    bool after_end = false;  // the last step is the end of a job
    for (const Moment& moment : moments(schedule, timeline, w)) {
      const JobChanges& of_job = changes.of(moment.job);
      const Change& change = moment.is_end ? of_job.end : of_job.start;
      if (change.is_none()) continue;
      now.time = moment.time;
      now.stashes += change.stashes;
      now.bytes += static_cast<std::uint64_t>(change.bytes);  // a negative change subtracts, modulo 2^64
      if (!moment.is_end && after_end && of_worker.back().time == now.time) {
        of_worker.back() = now;
      } else {
        of_worker.push_back(now);
      }
      after_end = moment.is_end;
    }
  }
  return steps;
}

}  // namespace starpipe::plan
