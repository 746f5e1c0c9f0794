// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/data_use.hpp"

#include <algorithm>
#include <deque>
#include <functional>
#include <tuple>
#include <unordered_map>

namespace starpipe::runtime {

RankTasks tasks_of_rank(const TaskGraph& graph, const std::vector<bool>& local) {
  RankTasks mine;
  mine.last_use.assign(graph.data().size(), RankTasks::unused);
  const auto owns_input = [&](const DataAccess& access) {
    return access.access == Access::read && local[index(graph.data()[access.datum].worker)];
  };
  for (const Task& task : graph.tasks()) {
    if (!local[index(task.worker)] && std::ranges::none_of(task.data, owns_input)) continue;
    const auto next = static_cast<std::uint32_t>(mine.tasks.size());
    for (const DataAccess& access : task.data) mine.last_use[access.datum] = next;
    mine.tasks.push_back(static_cast<std::uint32_t>(graph.number_of(task)));
  }
  mine.tasks.shrink_to_fit();
  return mine;
}

FetchedCopies::FetchedCopies(const TaskGraph& graph, std::span<const int> nodes)
    : graph_(graph), nodes_(nodes.begin(), nodes.end()) {
  for (const Task& task : graph_.tasks()) {
    for (const DataAccess& access : task.data) {
      if (!is_fetched(access, task.worker)) continue;
      const Copy copy{access.datum, node(task.worker)};
      if (++readers_[copy] == 1 && graph_.data()[access.datum].kind == DataKind::weights)
        weights_.push_back(copy);
    }
  }
  reset();
}

bool FetchedCopies::is_fetched(const DataAccess& access, int worker) const {
  const Datum& datum = graph_.data()[access.datum];
  if (datum.kind == DataKind::verdict) return false;  // it stays in main memory
  return access.access == Access::read && !is_temporary(datum.kind) && node(worker) > main_memory &&
         node(datum.worker) >= main_memory && node(datum.worker) != node(worker);
}

void FetchedCopies::reset() {
  const std::scoped_lock lock(mutex_);
  left_ = readers_;
}

std::vector<std::size_t> FetchedCopies::unread_after(const Task& task) {
  std::vector<std::size_t> unread;
  if (readers_.empty()) return unread;
  const std::scoped_lock lock(mutex_);
  for (const DataAccess& access : task.data) {
    if (is_fetched(access, task.worker) && --left_[{access.datum, node(task.worker)}] == 0)
      unread.push_back(access.datum);
  }
  return unread;
}

namespace {

constexpr std::uint32_t no_slot = std::numeric_limits<std::uint32_t>::max();
constexpr std::uint32_t never = no_slot;

// For each worker, how many of its first jobs have ended.
using Ended = std::vector<std::uint32_t>;

// A slot whose datum no later task touches.
struct FreeSlot {
  std::uint32_t since;  // the number of the datum's last task
  std::uint32_t slot;
  Ended needed;  // includes every job that touches the datum
};

// The minimum number of jobs that a worker runs after the last job of a slot's old datum and before the first
// job of the new datum. In this time StarPU hands the slot over, and the host fills inputs.
constexpr std::size_t slack = 8;

// The workers of `jobs`, and behind them their channels for O and for L. Each of these runs its jobs
// sequentially.
std::size_t runner_of(const Task& task, std::size_t workers) {
  const std::size_t channel = task.kind == TaskKind::O ? 1 : task.kind == TaskKind::L ? 2 : 0;
  return channel * workers + index(task.worker);
}

// Knows which jobs have certainly ended when a job starts: the jobs that its worker (or its channel) ran
// before, the jobs whose results it reads, and all jobs that had ended when one of these started. `add` takes
// jobs in the graph's order.
class EndedJobs {
 public:
  explicit EndedJobs(std::size_t workers)
      : workers_(workers), after_last_(3 * workers, Ended(3 * workers, 0)), starts_(3 * workers) {}

  // Returns the jobs that have ended when the worker starts the job that is `slack` jobs before `task` in its
  // order; an empty list if there is no such job. Call it before `add`.
  [[nodiscard]] const Ended& long_before(const Task& task) const {
    static const Ended none_yet;
    const std::deque<Ended>& starts = starts_[runner_of(task, workers_)];
    return starts.size() == slack ? starts.front() : none_yet;
  }

  void add(const TaskGraph& graph, const Task& task) {
    const std::size_t worker = runner_of(task, workers_);
    Ended ended = after_last_[worker];
    for (const DataAccess& access : task.data) {
      const auto writer = after_writer_.find(access.datum);
      if (writer != after_writer_.end())
        std::ranges::transform(ended, writer->second, ended.begin(),
                               [](std::uint32_t a, std::uint32_t b) { return std::max(a, b); });
    }
    starts_[worker].push_back(ended);
    if (starts_[worker].size() > slack) starts_[worker].pop_front();
    ++ended[worker];
    for (const DataAccess& access : task.data) {
      if (graph.data()[access.datum].microbatch < 0) continue;
      Ended& needed = needed_[access.datum];
      needed.resize(ended.size(), 0);
      needed[worker] = ended[worker];
      if (access.access == Access::write) after_writer_[access.datum] = ended;
    }
    after_last_[worker] = std::move(ended);
  }

  // Returns the datum's FreeSlot::needed, and forgets the datum. Call it after the last job that touches the
  // datum.
  Ended take_needed(std::uint32_t datum) {
    after_writer_.erase(datum);
    return std::move(needed_.extract(datum).mapped());
  }

 private:
  std::size_t workers_;
  std::vector<Ended> after_last_;          // by worker: jobs that have ended when its last job ends
  std::vector<std::deque<Ended>> starts_;  // by worker: the same for the start of its last `slack` jobs
  // By datum that a later task touches:
  std::unordered_map<std::uint32_t, Ended> after_writer_;  // jobs that have ended when it is written
  std::unordered_map<std::uint32_t, Ended> needed_;  // jobs that touch it, and earlier jobs of their workers
};

// True if all needed jobs have ended; false if `ended` is empty.
bool covers(const Ended& ended, const Ended& needed) {
  return std::ranges::equal(ended, needed, std::ranges::greater_equal());
}

}  // namespace

DataSlots::DataSlots(const TaskGraph& graph, std::optional<int> window)
    : slots_(graph.data().size(), no_slot) {
  using Key = std::tuple<DataKind, int, int, std::size_t>;
  const auto add_slot = [this] { return static_cast<std::uint32_t>(count_++); };
  const std::size_t workers = index(std::ranges::max(graph.tasks(), {}, &Task::worker).worker) + 1;
  std::vector<std::uint32_t> last = tasks_of_rank(graph, std::vector<bool>(workers, true)).last_use;
  std::map<Key, std::deque<FreeSlot>> free;  // oldest first
  EndedJobs jobs(workers);
  for (std::uint32_t t = 0; window && t < graph.tasks().size(); ++t) {
    const Task& task = graph.tasks()[t];
    if (!task.job) continue;  // such a task touches only data that last over the steps
    const Ended ended = jobs.long_before(task);
    jobs.add(graph, task);
    for (const DataAccess& access : task.data) {
      const Datum& datum = graph.data()[access.datum];
      std::uint32_t& slot = slots_[access.datum];
      if (datum.microbatch < 0) continue;
      std::deque<FreeSlot>& of_kind = free[{datum.kind, datum.stage, datum.worker, datum.size}];
      const bool is_free = !of_kind.empty() && (of_kind.front().since + index(*window) < t ||
                                                covers(ended, of_kind.front().needed));
      if (slot == no_slot && is_free) {
        slot = of_kind.front().slot;
        of_kind.pop_front();
      }
      if (slot == no_slot) slot = add_slot();
      if (last[access.datum] != t) continue;
      of_kind.push_back({t, slot, jobs.take_needed(access.datum)});
      last[access.datum] = never;  // free the slot once, though a task may name a datum twice
    }
  }
  for (std::uint32_t& slot : slots_) {
    if (slot == no_slot) slot = add_slot();
  }
}

}  // namespace starpipe::runtime
