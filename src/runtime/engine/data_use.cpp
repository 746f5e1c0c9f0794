// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/data_use.hpp"

#include <algorithm>
#include <deque>
#include <memory>
#include <numeric>
#include <tuple>
#include <utility>

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

std::vector<bool> early_inputs(const TaskGraph& graph) {
  std::map<int, std::uint64_t> inputs;   // bytes, by stage
  std::map<int, std::uint64_t> stashes;  // of one micro-batch
  for (const Datum& datum : graph.data()) {
    if (is_from_host(datum.kind)) inputs[datum.stage] += datum.bytes();
    if (datum.kind == DataKind::stash) stashes[datum.stage] = datum.bytes();
  }
  std::vector<bool> early;
  for (const Datum& datum : graph.data())
    early.push_back(is_from_host(datum.kind) && inputs[datum.stage] <= stashes[datum.stage]);
  return early;
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

// For each worker, and each of its channels, how many of its first jobs have ended.
using Ended = std::vector<std::uint32_t>;

// A worker, or one of its channels, that touches a datum. `count`: how many jobs it has run when it has
// touched the datum for the last time.
struct LastJob {
  std::uint32_t runner;
  std::uint32_t count;
};
using LastJobs = std::vector<LastJob>;  // of one datum

// A slot whose datum no later task touches.
struct FreeSlot {
  std::uint32_t since;  // the number of the datum's last task
  std::uint32_t slot;
  LastJobs needed;
};

// The minimum number of jobs that a worker runs after the last job of a slot's old datum and before the first
// job of the new datum. In this time StarPU hands the slot over, and the host fills inputs.
constexpr std::size_t slack = 8;

// Knows which jobs have certainly ended when a job starts: the jobs that its worker (or its channel) ran
// before, the jobs whose results it reads, and all jobs that had ended when one of these started. `add` takes
// jobs in the graph's order.
class EndedJobs {
 public:
  // `first_of`: by datum, the datum that is the first one in its memory.
  EndedJobs(const TaskGraph& graph, std::span<const std::uint32_t> first_of, std::size_t workers)
      : graph_(graph),
        first_of_(first_of),
        workers_(workers),
        runners_(std::ranges::any_of(graph.tasks(), is_stash_copy, &Task::kind) ? 3 * workers : workers),
        last_(runners_),
        after_writer_(graph.data().size()),
        needed_(graph.data().size()) {}

  // True if all `needed` jobs have ended when the worker starts the job that is `slack` jobs before `task` in
  // its order; false if there is no such job. Call it after `add` of this task.
  [[nodiscard]] bool had_ended(const LastJobs& needed, const Task& task) const {
    const std::uint32_t runner = runner_of(task);
    const std::deque<std::shared_ptr<const Ended>>& last = last_[runner];
    if (last.size() <= slack) return false;
    return std::ranges::all_of(needed, [&](const LastJob& job) {
      const std::uint32_t own = job.runner == runner ? 1 : 0;  // it has not ended when it starts
      return (*last.front())[job.runner] - own >= job.count;
    });
  }

  void add(const Task& task) {
    const std::uint32_t runner = runner_of(task);
    std::deque<std::shared_ptr<const Ended>>& last = last_[runner];
    auto ended = last.empty() ? std::make_shared<Ended>(runners_, 0) : std::make_shared<Ended>(*last.back());
    for (const DataAccess& access : task.data) {
      if (const std::shared_ptr<const Ended>& writer = after_writer_[first_of_[access.datum]])
        std::ranges::transform(*ended, *writer, ended->begin(),
                               [](std::uint32_t a, std::uint32_t b) { return std::max(a, b); });
    }
    const std::uint32_t count = ++(*ended)[runner];
    for (const DataAccess& access : task.data) {
      if (graph_.data()[access.datum].microbatch < 0) continue;
      note({runner, count}, needed_[first_of_[access.datum]]);
      if (access.access == Access::write) after_writer_[first_of_[access.datum]] = ended;
    }
    last.push_back(std::move(ended));
    if (last.size() > slack + 1) last.pop_front();
  }

  // Returns the datum's FreeSlot::needed, and forgets the datum. Call it after the last job that touches the
  // datum.
  LastJobs take_needed(std::uint32_t datum) {
    after_writer_[datum].reset();
    return std::exchange(needed_[datum], {});
  }

 private:
  // The workers of jobs, and behind them their channels, out and in. Each of these runs its jobs
  // sequentially.
  [[nodiscard]] std::uint32_t runner_of(const Task& task) const {
    const std::size_t behind = task.channel ? 1 + index(*task.channel) : 0;
    return static_cast<std::uint32_t>(behind * workers_ + index(task.worker));
  }
  static void note(LastJob job, LastJobs& jobs) {
    const auto same = std::ranges::find(jobs, job.runner, &LastJob::runner);
    if (same == jobs.end()) {
      jobs.push_back(job);
    } else {
      same->count = job.count;
    }
  }

  const TaskGraph& graph_;
  std::span<const std::uint32_t> first_of_;
  std::size_t workers_;
  std::size_t runners_;
  // By worker or channel: the jobs that have ended when its last job ends, and each of the `slack` before.
  std::vector<std::deque<std::shared_ptr<const Ended>>> last_;
  // By datum that a later task touches:
  std::vector<std::shared_ptr<const Ended>> after_writer_;  // jobs that have ended when it is written
  std::vector<LastJobs> needed_;
};

// Returns, for each datum, the datum that it continues, or itself. Where StarPU moves stashes, the result of
// L continues the result of F, as does a stash that waits on another worker.
std::vector<std::uint32_t> first_in_slot(const TaskGraph& graph, bool moves_stashes) {
  std::vector<std::uint32_t> first(graph.data().size());
  std::iota(first.begin(), first.end(), 0U);
  if (!moves_stashes) return first;
  std::map<std::pair<int, int>, std::uint32_t> moved_out;  // by stage and micro-batch
  for (const Task& task : graph.tasks()) {
    if (!is_stash_copy(task.kind)) continue;
    for (const DataAccess& access : task.data) {
      const Datum& datum = graph.data()[access.datum];
      if (datum.kind != DataKind::stash) continue;
      const auto [moved, is_first] =
          moved_out.try_emplace(std::pair(datum.stage, datum.microbatch), access.datum);
      if (!is_first) first[access.datum] = moved->second;
    }
  }
  return first;
}

}  // namespace

DataSlots::DataSlots(const TaskGraph& graph, std::optional<int> window, bool moves_stashes)
    : slots_(graph.data().size(), no_slot), continues_(moves_stashes ? graph.data().size() : 0, false) {
  using Key = std::tuple<DataKind, int, int, std::size_t>;
  const auto add_slot = [this] { return static_cast<std::uint32_t>(count_++); };
  const std::size_t workers = index(std::ranges::max(graph.tasks(), {}, &Task::worker).worker) + 1;
  std::vector<std::uint32_t> last = tasks_of_rank(graph, std::vector<bool>(workers, true)).last_use;
  const std::vector<std::uint32_t> first_of = first_in_slot(graph, moves_stashes);
  std::map<std::uint32_t, std::uint32_t> before;  // by the first datum of a slot: the datum to continue
  for (std::uint32_t d = 0; d < first_of.size(); ++d) {
    if (first_of[d] == d) continue;
    last[first_of[d]] = last[d];
    continues_[std::exchange(before.try_emplace(first_of[d], first_of[d]).first->second, d)] = true;
  }
  std::map<Key, std::deque<FreeSlot>> free;  // oldest first
  EndedJobs jobs(graph, first_of, workers);
  for (std::uint32_t t = 0; window && t < graph.tasks().size(); ++t) {
    const Task& task = graph.tasks()[t];
    if (!task.job) continue;  // such a task touches only data that last over the steps
    jobs.add(task);
    for (const DataAccess& access : task.data) {
      const std::uint32_t first = first_of[access.datum];
      const Datum& datum = graph.data()[first];
      std::uint32_t& slot = slots_[first];
      if (datum.microbatch < 0) continue;
      std::deque<FreeSlot>& of_kind = free[{datum.kind, datum.stage, datum.worker, datum.size}];
      const bool is_free = !of_kind.empty() && (of_kind.front().since + index(*window) < t ||
                                                jobs.had_ended(of_kind.front().needed, task));
      if (slot == no_slot && is_free) {
        slot = of_kind.front().slot;
        of_kind.pop_front();
      }
      if (slot == no_slot) slot = add_slot();
      if (last[first] != t) continue;
      of_kind.push_back({t, slot, jobs.take_needed(first)});
      last[first] = never;  // free the slot once, though a task may name a datum twice
    }
  }
  for (std::uint32_t d = 0; d < slots_.size(); ++d) {
    std::uint32_t& slot = slots_[first_of[d]];
    if (slot == no_slot) slot = add_slot();
    slots_[d] = slot;
  }
}

}  // namespace starpipe::runtime
