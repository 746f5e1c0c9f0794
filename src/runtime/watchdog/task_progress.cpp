// SPDX-License-Identifier: Apache-2.0
#include "runtime/watchdog/task_progress.hpp"

#include "runtime/ranks/clock.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::runtime {

TaskProgress::TaskProgress(const TaskGraph& graph, const std::vector<bool>& local, bool evaluates)
    : graph_(graph), evaluates_(evaluates), starts_(graph.tasks().size()) {
  for (std::size_t t = 0; t < graph.tasks().size(); ++t) {
    if (local[index(graph.tasks()[t].worker)]) mine_.push_back(t);
  }
}

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
  while (first_ < mine_.size() && starts_[mine_[first_]] == has_ended) ++first_;
  if (first_ == mine_.size()) return status;
  status.next = static_cast<std::int32_t>(mine_[first_]);
  for (std::size_t i = first_; runs && i < mine_.size(); ++i) {
    const double start = starts_[mine_[i]];
    if (start <= not_started) continue;
    status.running = static_cast<std::int32_t>(mine_[i]);
    status.running_for = clock_seconds() - start;
    break;
  }
  return status;
}

}  // namespace starpipe::runtime
