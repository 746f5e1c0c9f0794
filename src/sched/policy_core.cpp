// SPDX-License-Identifier: Apache-2.0
#include "starpipe/sched/policy_core.hpp"

#include <algorithm>
#include <functional>
#include <iterator>
#include <stdexcept>
#include <thread>
#include <utility>

#include "starpipe/base/index.hpp"

namespace starpipe::sched {
namespace {

constexpr std::chrono::microseconds awake{100};  // part of a wait in which the thread yields

}  // namespace

PolicyCore::PolicyCore(int workers, CanRun can_run, AwaitsInputs awaits_inputs)
    : can_run_(can_run), awaits_inputs_(awaits_inputs) {
  for (int w = 0; w < workers; ++w) workers_.push_back(std::make_unique<Worker>());
}

void PolicyCore::begin(const plan::Schedule& schedule, std::span<const int> logical) {
  for (const auto& worker : workers_) {
    const std::scoped_lock lock(worker->mutex);
    if (worker->queue && worker->queue->unfinished() > 0) {
      throw std::logic_error("a run of the policy began before the last one ended");
    }
  }
  schedule_ = &schedule;
  for (std::size_t w = 0; w < workers_.size(); ++w) {
    Worker& worker = *workers_[w];
    const std::scoped_lock lock(worker.mutex);
    worker.queue.reset();
    worker.task_of.clear();
    worker.fetched.clear();
    if (w >= logical.size() || logical[w] < 0 || schedule.order(logical[w]).empty()) continue;
    worker.queue.emplace(schedule, logical[w]);
    worker.task_of.assign(schedule.order(logical[w]).size(), nullptr);
    worker.fetched.assign(worker.task_of.size(), false);
  }
}

plan::WorkerQueue& PolicyCore::queue_of(Worker& worker) {
  if (!worker.queue) throw std::logic_error("a job of a worker that has none in this run of the policy");
  return *worker.queue;
}

bool PolicyCore::fetch_before_push(int worker_id, std::optional<plan::JobId> job, std::int64_t n) {
  // A program may have thousands of ready tasks with an n. Their inputs need not fit into the worker's
  // memory.
  if (!job) return n == no_n;
  Worker& worker = *workers_.at(index(worker_id));
  const std::scoped_lock lock(worker.mutex);
  if (!queue_of(worker).is_near(*job, fetched_ahead)) return false;
  worker.fetched[schedule_->position(*job)] = true;
  return true;
}

std::vector<PolicyCore::Task> PolicyCore::to_fetch(int worker_id) {
  std::vector<Task> tasks;
  Worker& worker = *workers_[index(worker_id)];
  const std::scoped_lock lock(worker.mutex);
  if (!worker.pinned.empty() && !std::exchange(worker.pinned.front().fetched, true)) {
    tasks.push_back(worker.pinned.front().task);
  }
  if (!worker.queue) return tasks;
  for (const plan::JobId job : worker.queue->ready_and_near(fetched_ahead)) {
    const std::size_t position = schedule_->position(job);
    if (worker.fetched[position]) continue;
    worker.fetched[position] = true;
    tasks.push_back(worker.task_of[position]);
  }
  return tasks;
}

bool PolicyCore::push(int worker_id, Task task, std::optional<plan::JobId> job, std::int64_t n) {
  Worker& worker = *workers_.at(index(worker_id));
  bool waits = false;
  {
    const std::scoped_lock lock(worker.mutex);
    if (job) {
      plan::WorkerQueue& queue = queue_of(worker);
      worker.task_of[schedule_->position(*job)] = task;
      queue.push(*job);
    } else if (n == no_n) {
      worker.without_n.push_back(task);
    } else {
      worker.pinned.push_back({.n = n, .arrival = worker.arrivals++, .task = task, .fetched = false});
      std::ranges::push_heap(worker.pinned, std::greater<>());
    }
    worker.was_pushed = true;
    waits = worker.waits;
  }
  if (waits) worker.pushed.notify_one();
  return !waits;
}

std::optional<int> PolicyCore::take_idle(const FreeTask& task) {
  for (auto at = idle_.rbegin(); at != idle_.rend(); ++at) {
    const int worker = *at;
    if (!task.can_run[index(worker)]) continue;
    idle_.erase(std::next(at).base());
    return worker;
  }
  return std::nullopt;
}

void PolicyCore::notify(int worker_id) {
  Worker& worker = *workers_[index(worker_id)];
  {
    const std::scoped_lock lock(worker.mutex);
    worker.was_pushed = true;
  }
  worker.pushed.notify_one();
}

std::optional<int> PolicyCore::push_free(Task task, int priority) {
  FreeTask queued{task, std::vector<bool>(workers_.size())};
  for (std::size_t w = 0; w < workers_.size(); ++w) queued.can_run[w] = can_run_(task, static_cast<int>(w));
  std::optional<int> woken;
  {
    const std::scoped_lock lock(free_mutex_);
    woken = take_idle(queued);
    free_.emplace(priority, std::move(queued));
  }
  if (woken) notify(*woken);
  return woken;
}

std::optional<int> PolicyCore::start(int worker_id) {
  Worker& worker = *workers_[index(worker_id)];
  if (!worker.was_idle) return std::nullopt;
  worker.was_idle = false;
  std::optional<int> woken;
  {
    const std::scoped_lock lock(free_mutex_);
    std::erase(idle_, worker_id);
    for (auto at = free_.begin(); at != free_.end() && !idle_.empty() && !woken; ++at) {
      woken = take_idle(at->second);
    }
  }
  if (woken) notify(*woken);
  return woken;
}

bool PolicyCore::wait(int worker_id, std::chrono::microseconds max) {
  if (void (*const idle)() = when_idle_) idle();
  Worker& worker = *workers_[index(worker_id)];
  const struct Waits {
    explicit Waits(std::atomic<bool>& flag) : flag_(flag) { flag_ = true; }
    ~Waits() { flag_ = false; }
    std::atomic<bool>& flag_;
  } waits(worker.waits);
  // A thread that sleeps takes tens of microseconds to wake, on a virtual machine more: longer than most
  // waits between jobs.
  const auto now = std::chrono::steady_clock::now;
  for (const auto end = now() + std::min(max, awake / patience_.load()); now() < end;
       std::this_thread::yield()) {
    if (worker.was_pushed.load(std::memory_order_acquire)) return true;
  }
  std::unique_lock lock(worker.mutex);
  return worker.pushed.wait_for(lock, max * patience_.load(), [&worker] { return worker.was_pushed.load(); });
}

// Only the worker's own thread removes tasks, so a task that is found here is still there afterwards.
PolicyCore::Task PolicyCore::find_without_wait(int worker_id) {
  Worker& worker = *workers_[index(worker_id)];
  std::vector<Task> tasks;
  {
    const std::scoped_lock lock(worker.mutex);
    if (worker.without_n.empty()) return nullptr;
    if (awaits_inputs_ == nullptr) return worker.without_n.front();
    tasks.assign(worker.without_n.begin(), worker.without_n.end());
  }
  const auto found = std::ranges::find_if(tasks, [&](Task task) { return !awaits_inputs_(task, worker_id); });
  return found == tasks.end() ? nullptr : *found;
}

PolicyCore::Task PolicyCore::pop(int worker_id) {
  Worker& worker = *workers_[index(worker_id)];
  worker.was_pushed = false;  // before the search: a push during it is not lost
  Task without_n = find_without_wait(worker_id);
  {
    const std::scoped_lock lock(worker.mutex);
    if (without_n == nullptr && worker.queue) {
      if (const auto job = worker.queue->pop()) return worker.task_of[schedule_->position(*job)];
    }
    // A worker that takes a task waits for its inputs. So it does not while it has jobs to come, or other
    // tasks whose inputs may arrive earlier.
    if (without_n == nullptr && worker.without_n.size() == 1 && !worker.queue)
      without_n = worker.without_n.front();
    if (without_n != nullptr) {
      worker.without_n.erase(std::ranges::find(worker.without_n, without_n));
      return without_n;
    }
    if (!worker.pinned.empty()) {
      std::ranges::pop_heap(worker.pinned, std::greater<>());
      const Task task = worker.pinned.back().task;
      worker.pinned.pop_back();
      return task;
    }
  }
  const std::scoped_lock lock(free_mutex_);
  for (auto at = free_.begin(); at != free_.end(); ++at) {
    if (!at->second.can_run[index(worker_id)]) continue;
    const Task task = at->second.task;
    free_.erase(at);
    return task;
  }
  worker.was_idle = true;
  if (std::ranges::find(idle_, worker_id) == idle_.end()) idle_.push_back(worker_id);
  return nullptr;
}

void PolicyCore::finish(int worker_id, plan::JobId job) {
  Worker& worker = *workers_[index(worker_id)];
  const std::scoped_lock lock(worker.mutex);
  queue_of(worker).finish(job);
  // Idle workers continue to pop, but after the last job the schedule may be destroyed.
  if (worker.queue->unfinished() == 0) worker.queue.reset();
}

}  // namespace starpipe::sched
