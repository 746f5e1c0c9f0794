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
      heap_(ByTurn{&schedule}),
      forward_(ByTurn{&schedule}) {
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
  forward_of_.assign(microbatches, Heap(ByTurn{&schedule}));
  taken_.assign(unfinished_, false);
  std::vector<int> stages_of(microbatches, 0);
  for (const JobId id : schedule.order(worker_)) {
    const Job job = schedule.job(id);
    ++unfinished_of_[index(job.microbatch)];
    if (job.pass == Pass::F) reserve_ = std::max(reserve_, ++stages_of[index(job.microbatch)]);
  }
  skip_finished();
}

void WorkerQueue::skip_finished() {
  const auto by_age = schedule_->microbatches_by_age();
  while (oldest_ < by_age.size() && unfinished_of_[index(by_age[oldest_])] == 0) ++oldest_;
}

// Whether F of the job's stage and micro-batch and W (or BW) both run on this worker, so that W ends the
// stash that F began. `check` refuses the bounded discipline where these passes run on different workers.
bool WorkerQueue::keeps_stash(JobId id) const {
  const Job job = schedule_->job(id);
  return schedule_->compute(schedule_->forward(job.stage, job.microbatch)) == worker_ &&
         schedule_->compute(schedule_->weight_gradient(job.stage, job.microbatch)) == worker_;
}

void WorkerQueue::push(JobId id) {
  ++ready_count_;
  if (schedule_->discipline() == Discipline::ordered) {
    is_ready_[schedule_->position(id)] = true;
    return;
  }
  const Job job = schedule_->job(id);
  if (schedule_->discipline() == Discipline::bounded && job.pass == Pass::F) {
    forward_of_[index(job.microbatch)].push(id);
    forward_.push(id);
  } else {
    heap_.push(id);
  }
}

std::optional<JobId> WorkerQueue::pop() {
  std::optional<JobId> id;
  switch (schedule_->discipline()) {
    case Discipline::ordered:
      id = pop_ordered();
      break;
    case Discipline::bounded:
      id = pop_bounded();
      break;
    case Discipline::greedy:
      if (!heap_.empty()) {
        id = heap_.top();
        heap_.pop();
      }
      break;
  }
  if (!id) return id;
  --ready_count_;
  const Job job = schedule_->job(*id);
  if (job.pass == Pass::F && keeps_stash(*id)) {
    ++live_;
    if (!held_.empty()) ++held_[index(job.microbatch)];
  }
  return id;
}

bool WorkerQueue::is_near(JobId id, std::size_t most) const {
  if (schedule_->discipline() == Discipline::ordered) return schedule_->position(id) < next_ + most;
  return ready_count_ < most;
}

std::vector<JobId> WorkerQueue::ready_and_near(std::size_t most) const {
  std::vector<JobId> jobs;
  if (schedule_->discipline() == Discipline::ordered) {
    const auto order = schedule_->order(worker_);
    for (std::size_t at = next_; at < std::min(next_ + most, order.size()); ++at) {
      if (is_ready_[at]) jobs.push_back(order[at]);
    }
    return jobs;
  }
  for (const Heap* heap : {&heap_, &forward_}) {
    if (jobs.size() < most && !heap->empty()) jobs.push_back(heap->top());
  }
  return jobs;
}

std::optional<JobId> WorkerQueue::pop_ordered() {
  if (next_ == is_ready_.size() || !is_ready_[next_]) return std::nullopt;
  return schedule_->order(worker_)[next_++];
}

std::optional<JobId> WorkerQueue::pop_bounded() {
  const auto by_age = schedule_->microbatches_by_age();
  if (oldest_ == by_age.size()) return std::nullopt;
  const auto oldest = index(by_age[oldest_]);
  const bool others_may_start = live_ - held_[oldest] < limit_ - reserve_;
  Heap& forward = others_may_start ? forward_ : forward_of_[oldest];
  drop_taken(forward);

  Heap* best = nullptr;
  for (Heap* heap : {&heap_, &forward}) {
    if (!heap->empty() && (best == nullptr || ByTurn{schedule_}(best->top(), heap->top()))) best = heap;
  }
  if (best == nullptr) return std::nullopt;
  const JobId id = best->top();
  best->pop();
  if (best == &forward) {
    taken_[schedule_->position(id)] = true;
    drop_taken(forward_);  // `ready_and_near` reads its top
  }
  return id;
}

void WorkerQueue::drop_taken(Heap& heap) const {
  while (!heap.empty() && taken_[schedule_->position(heap.top())]) heap.pop();
}

void WorkerQueue::finish(JobId id) {
  --unfinished_;
  const Job job = schedule_->job(id);
  if ((job.pass == Pass::W || job.pass == Pass::BW) && keeps_stash(id)) {
    --live_;
    if (!held_.empty()) --held_[index(job.microbatch)];
  }
  if (schedule_->discipline() != Discipline::bounded) return;
  --unfinished_of_[index(job.microbatch)];
  skip_finished();
}

}  // namespace starpipe::plan
