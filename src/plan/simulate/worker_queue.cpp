// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/simulate/worker_queue.hpp"

#include <algorithm>
#include <limits>

#include "starpipe/base/index.hpp"

namespace starpipe::plan {

WorkerQueue::WorkerQueue(const Schedule& schedule, int worker)
    : schedule_(&schedule),
      worker_(worker),
      unfinished_(schedule.order(worker).size()),
      ready_(ByTurn{&schedule}),
      stash_beginners_(ByTurn{&schedule}) {
  if (schedule.discipline() == Discipline::ordered) is_ready_.assign(unfinished_, false);
  if (schedule.discipline() == Discipline::bounded) prepare_bounded();
}

void WorkerQueue::prepare_bounded() {
  const Schedule& schedule = *schedule_;
  const auto microbatches = index(schedule.microbatches());
  limit_ = schedule.memory_limits().empty() ? std::numeric_limits<int>::max()
                                            : schedule.memory_limits()[index(worker_)];
  unfinished_of_.assign(microbatches, 0);
  held_.assign(microbatches, 0);
  stash_beginners_of_.assign(microbatches, ReadyJobs(ByTurn{&schedule}));
  std::vector<int> stages_of(microbatches, 0);
  for (const JobId id : schedule.order(worker_)) {
    const Job job = schedule.job(id);
    ++unfinished_of_[index(job.microbatch)];
    if (begins_stash(id)) reserve_ = std::max(reserve_, ++stages_of[index(job.microbatch)]);
  }
  skip_finished();
}

void WorkerQueue::skip_finished() {
  const auto by_age = schedule_->microbatches_by_age();
  while (oldest_ < by_age.size() && unfinished_of_[index(by_age[oldest_])] == 0) ++oldest_;
}

bool WorkerQueue::begins_stash(JobId id) const {
  if (schedule_->forward_only()) return false;
  const Job job = schedule_->job(id);
  return id == schedule_->stash_maker(job.stage, job.microbatch);
}

// True if the stash of the job's stage and micro-batch begins on this worker, and W (or BW) ends it here.
// `check` refuses the bounded discipline where these passes run on different workers.
bool WorkerQueue::keeps_stash(JobId id) const {
  const Job job = schedule_->job(id);
  return schedule_->compute(schedule_->stash_maker(job.stage, job.microbatch)) == worker_ &&
         schedule_->compute(schedule_->weight_gradient(job.stage, job.microbatch)) == worker_;
}

void WorkerQueue::push(JobId id) {
  ++ready_count_;
  if (schedule_->discipline() == Discipline::ordered) {
    is_ready_[schedule_->position(id)] = true;
    return;
  }
  if (schedule_->discipline() == Discipline::bounded && begins_stash(id)) {
    stash_beginners_of_[index(schedule_->job(id).microbatch)].insert(id);
    stash_beginners_.insert(id);
  } else {
    ready_.insert(id);
  }
}

std::optional<JobId> WorkerQueue::pop() {
  const std::optional<JobId> id =
      schedule_->discipline() == Discipline::ordered ? pop_ordered() : pop_by_turn();
  if (!id) return id;
  --ready_count_;
  if (begins_stash(*id) && keeps_stash(*id)) {
    ++live_;
    if (!held_.empty()) ++held_[index(schedule_->job(*id).microbatch)];
  }
  return id;
}

bool WorkerQueue::is_near(JobId id, std::size_t max) const {
  if (schedule_->discipline() == Discipline::ordered) return schedule_->position(id) < next_ + max;
  return ready_count_ < max;
}

std::vector<JobId> WorkerQueue::ready_and_near(std::size_t max) const {
  std::vector<JobId> jobs;
  if (schedule_->discipline() == Discipline::ordered) {
    const auto order = schedule_->order(worker_);
    for (std::size_t at = next_; at < std::min(next_ + max, order.size()); ++at) {
      if (is_ready_[at]) jobs.push_back(order[at]);
    }
    return jobs;
  }
  for (const ReadyJobs* ready : {&ready_, &stash_beginners_}) {
    if (jobs.size() < max && !ready->empty()) jobs.push_back(*ready->begin());
  }
  return jobs;
}

std::optional<JobId> WorkerQueue::pop_ordered() {
  if (next_ == is_ready_.size() || !is_ready_[next_]) return std::nullopt;
  const JobId id = schedule_->order(worker_)[next_];
  if (!is_ready_[schedule_->position(schedule_->last_of_pair(id))]) return std::nullopt;
  ++next_;
  return id;
}

// Returns the jobs that may begin a stash now. Null under the greedy discipline, whose jobs are all in
// `ready_`, and when the bounded discipline refuses every such job.
const WorkerQueue::ReadyJobs* WorkerQueue::allowed_to_begin() const {
  if (schedule_->discipline() == Discipline::greedy) return nullptr;
  if (schedule_->recomputes_all()) return live_ < limit_ ? &stash_beginners_ : nullptr;
  const auto by_age = schedule_->microbatches_by_age();
  if (oldest_ == by_age.size()) return nullptr;
  const auto oldest = index(by_age[oldest_]);
  const bool others_may_start = live_ - held_[oldest] < limit_ - reserve_;
  return others_may_start ? &stash_beginners_ : &stash_beginners_of_[oldest];
}

std::optional<JobId> WorkerQueue::pop_by_turn() {
  std::optional<JobId> first;
  for (const ReadyJobs* ready : {static_cast<const ReadyJobs*>(&ready_), allowed_to_begin()}) {
    if (ready == nullptr || ready->empty()) continue;
    if (!first || schedule_->turn(*ready->begin()) < schedule_->turn(*first)) first = *ready->begin();
  }
  if (!first || ready_.erase(*first) > 0) return first;
  stash_beginners_.erase(*first);
  stash_beginners_of_[index(schedule_->job(*first).microbatch)].erase(*first);
  return first;
}

void WorkerQueue::finish(JobId id) {
  --unfinished_;
  const Job job = schedule_->job(id);
  if (gives_weight_gradient(job.pass) && keeps_stash(id)) {
    --live_;
    if (!held_.empty()) --held_[index(job.microbatch)];
  }
  if (schedule_->discipline() != Discipline::bounded) return;
  --unfinished_of_[index(job.microbatch)];
  skip_finished();
}

}  // namespace starpipe::plan
