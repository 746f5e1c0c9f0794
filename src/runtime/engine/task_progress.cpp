// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/task_progress.hpp"

#include "runtime/host/clock.hpp"

namespace starpipe::runtime {

TaskProgress::TaskProgress(const TaskGraph& graph, const std::vector<bool>& local, bool evaluates)
    : graph_(graph), evaluates_(evaluates), local_(local), starts_(graph.tasks().size()) {}

void TaskProgress::enter(StepPhase phase, int step) {
  const std::scoped_lock lock(mutex_);
  phase_ = phase;
  step_ = step;
  if (phase != StepPhase::beginning) return;
  for (auto& start : starts_) start = not_started;
  first_ = 0;
}

void TaskProgress::start(const Task& task) {
  starts_[graph_.number_of(task)] = clock_seconds();
  ++started_;
}

void TaskProgress::end(const Task& task) {
  starts_[graph_.number_of(task)] = has_ended;
  ++ended_;
}

RankStatus TaskProgress::status() const {
  const std::scoped_lock lock(mutex_);
  RankStatus status{.phase = phase_, .step = step_, .evaluates = evaluates_ ? 1 : 0};
  // Reads `ended_` first. If a task starts and ends between the two reads, `runs` is true by mistake; the
  // loop below then finds no running task.
  status.ended = ended_;
  const bool runs = started_ != status.ended;
  if (phase_ != StepPhase::running) return status;
  while (first_ < starts_.size() && (!is_mine(first_) || starts_[first_] == has_ended)) ++first_;
  if (first_ == starts_.size()) return status;
  status.next = static_cast<std::int32_t>(first_);
  for (std::size_t t = first_; runs && t < starts_.size(); ++t) {
    const double start = starts_[t];
    if (start <= not_started) continue;
    status.running = static_cast<std::int32_t>(t);
    status.running_for = clock_seconds() - start;
    break;
  }
  return status;
}

}  // namespace starpipe::runtime
