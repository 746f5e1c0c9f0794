// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/schedule/check.hpp"

#include <algorithm>
#include <functional>
#include <queue>
#include <stack>

#include <fmt/format.h>

#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::plan {
namespace {

// Calls f for each job that cannot start before `id` has ended. Results of a pair leave at the end of its
// last job, and F of a pair waits for the inputs of both jobs.
template <class Function>
void for_each_waiting(const Schedule& schedule, JobId id, Function&& f) {
  const JobId first = schedule.first_of_pair(id);
  for (const JobId of : {id, first}) {
    schedule.for_each_succ(of, [&](JobId next) {
      if (next == id && of == first) return;  // within the pair
      f(next);
      if (schedule.first_of_pair(next) != next) f(schedule.first_of_pair(next));
    });
    if (first == id) return;
  }
}

// Calls f for each job that must end before `id` can start.
template <class Function>
void for_each_awaited(const Schedule& schedule, JobId id, Function&& f) {
  const JobId last = schedule.last_of_pair(id);
  for (const JobId of : {id, last}) {
    schedule.for_each_pred(of, [&](JobId before) {
      f(before);
      const JobId ends = schedule.last_of_pair(before);
      if (ends != before && ends != of) f(ends);
    });
    if (last == id) return;
  }
}

// Successors by data and, when the discipline is ordered, the next job of the same worker.
template <class Function>
void for_each_next(const Schedule& schedule, JobId id, Function&& f) {
  for_each_waiting(schedule, id, f);
  if (schedule.discipline() != Discipline::ordered) return;
  if (schedule.copies() && is_copy(schedule.job(id).pass)) return;
  const auto order = schedule.order(schedule.compute(id));
  const std::size_t next = schedule.position(id) + std::size_t{1};
  if (next < order.size()) f(order[next]);
}

template <class Function>
void for_each_previous(const Schedule& schedule, JobId id, Function&& f) {
  for_each_awaited(schedule, id, f);
  if (schedule.discipline() != Discipline::ordered) return;
  if (schedule.copies() && is_copy(schedule.job(id).pass)) return;
  const auto position = schedule.position(id);
  if (position > 0) f(schedule.order(schedule.compute(id))[position - 1]);
}

// Kahn's algorithm: calls visit(id) for each job that can run. Returns, by JobId, the number of jobs that a
// job still waits for: zero everywhere when all jobs can run.
template <class Queue, class Visit>
std::vector<int> run_all(const Schedule& schedule, Queue free, Visit visit) {
  std::vector<int> waiting(schedule.id_count(), 0);
  for (const JobId id : schedule.order()) {
    for_each_previous(schedule, id, [&](JobId) { ++waiting[id]; });
    if (waiting[id] == 0) free.push(id);
  }
  while (!free.empty()) {
    const JobId id = free.top();
    free.pop();
    visit(id);
    for_each_next(schedule, id, [&](JobId next) {
      if (--waiting[next] == 0) free.push(next);
    });
  }
  return waiting;
}

std::string out_of_range(const Schedule& schedule, JobId id) {
  const auto bad = [&](int worker) { return worker < 0 || worker >= schedule.workers(); };
  const Placement at = schedule.placement(id);
  if (schedule.copies() && is_copy(schedule.job(id).pass)) {
    const std::optional<int> peer = schedule.peer(id);
    if (peer && bad(*peer)) {
      return fmt::format("{} copies a stash to or from worker {}, which does not exist (workers 0..{})",
                         to_string(schedule.job(id)), *peer, schedule.workers() - 1);
    }
  }
  if (!bad(at.compute) && !bad(at.weights)) return {};
  return fmt::format("{} {} worker {}, which does not exist (workers 0..{})", to_string(schedule.job(id)),
                     bad(at.compute) ? "runs on" : "takes its weights from",
                     bad(at.compute) ? at.compute : at.weights, schedule.workers() - 1);
}

// Returns, for each worker, the smallest limit with which the bounded discipline finishes: the largest number
// of stashes of one micro-batch that it makes (c of WorkerQueue). If no stash has a home, one is enough: the
// worker can run R, B and W of a stash one after the other.
std::vector<int> max_stages(const Schedule& schedule) {
  const bool all = schedule.recomputes_all();
  std::vector<int> max(index(schedule.workers()), all ? 1 : 0);
  std::vector<int> here(max.size());
  for (int b = 0; b < schedule.microbatches() && !all; ++b) {
    std::ranges::fill(here, 0);
    for (int s = 0; s < schedule.stages(); ++s) {
      const auto w = index(schedule.compute(schedule.stash_maker(s, b)));
      max[w] = std::max(max[w], ++here[w]);
    }
  }
  return max;
}

// Returns why O and L cannot run. Memory is free when W or BW has ended, so all passes of a stash must be on
// one worker: also of stashes that are not copied.
std::string copies_problem(const Schedule& schedule) {
  if (!schedule.copies()) return {};
  if (schedule.discipline() != Discipline::ordered) {
    return fmt::format(
        "homes to which stashes are copied need an ordered schedule, in which n says when memory is free; "
        "this "
        "one is {}",
        to_string(schedule.discipline()));
  }
  for (int b = 0; b < schedule.microbatches(); ++b) {
    for (int s = 0; s < schedule.stages(); ++s) {
      const JobId maker = schedule.stash_maker(s, b);
      for (const JobId id : {schedule.backward(s, b), schedule.weight_gradient(s, b)}) {
        if (schedule.compute(id) == schedule.compute(maker)) continue;
        return fmt::format(
            "a schedule that copies stashes has all passes of a stash on one worker, but {} runs on worker "
            "{} "
            "and {} on {}",
            to_string(schedule.job(id)), schedule.compute(id), to_string(schedule.job(maker)),
            schedule.compute(maker));
      }
    }
  }
  return {};
}

// Calls f(JobId, held) for each job of the worker with which it begins to hold a stash, in the order of n.
// `held`: the stashes with this one. `size(stage)`: of a stash.
template <class Size, class Function>
void for_each_new_stash(const Schedule& schedule, int worker, Size&& size, Function&& f) {
  auto held = decltype(size(0)){};
  if (schedule.forward_only()) return;
  for (const JobId id : schedule.order_with_copies(worker)) {
    const auto [s, b, pass] = schedule.job(id);
    if (schedule.recomputes(s, b) && pass == Pass::F) continue;
    if (is_copy(pass)) {
      if (schedule.channel(id, worker) == Channel::out) {
        held -= size(s);
      } else {
        f(id, held += size(s));
      }
      continue;
    }
    if (schedule.copies(s, b)) {
      if (pass == Pass::F) f(id, held += size(s));
      if (gives_weight_gradient(pass)) held -= size(s);
      continue;
    }
    bool is_first = true;
    bool is_last = true;
    for (const JobId other :
         {schedule.stash_maker(s, b), schedule.backward(s, b), schedule.weight_gradient(s, b)}) {
      if (schedule.compute(other) != worker) continue;
      is_first = is_first && schedule.position(other) >= schedule.position(id);
      is_last = is_last && schedule.position(other) <= schedule.position(id);
    }
    if (is_first) f(id, held += size(s));
    if (is_last) held -= size(s);
  }
}

// Adds up the stashes that wait at homes of one kind, O by O of one worker.
class Waiting {
 public:
  /// O of a stash of this size begins. `made`: the place of the pass that has made it. `read`: the place of
  /// the pass behind its L.
  void begin(std::uint32_t made, std::uint32_t read, double size) {
    // The copies of a channel follow each other, so what has left before one of them has left before the
    // next.
    now_ = std::max(now_, made);
    for (; !left_.empty() && left_.top().first < now_; left_.pop()) held_ -= left_.top().second;
    left_.emplace(read, size);
    held_ += size;
    most_ = std::max(most_, held_);
  }
  [[nodiscard]] double most() const { return most_; }

 private:
  using Stash = std::pair<std::uint32_t, double>;
  std::priority_queue<Stash, std::vector<Stash>, std::greater<>> left_;
  std::uint32_t now_ = 0;
  double held_ = 0;
  double most_ = 0;
};

// Returns why the bounded discipline cannot keep the limits, each of which is at least 1.
std::string bounded_problem(const Schedule& schedule) {
  if (schedule.slices() > 1)
    return "no order of slices is made for a memory limit (the discipline bounded does not know slices)";
  for (const JobId id : schedule.order()) {
    const Job job = schedule.job(id);
    const bool is_remade = schedule.recomputes(job.stage, job.microbatch);
    if (is_remade && job.pass == Pass::F) continue;
    const JobId maker = schedule.stash_maker(job.stage, job.microbatch);
    if (schedule.compute(id) == schedule.compute(maker)) continue;
    return fmt::format(
        "the bounded discipline needs {} of a stage and micro-batch on one worker, but {} runs on worker {} "
        "and its {} on {}",
        is_remade ? "R, B and W" : "F, B and W", to_string(job), schedule.compute(id),
        to_string(schedule.job(maker).pass), schedule.compute(maker));
  }
  const auto limits = schedule.memory_limits();
  const auto need = max_stages(schedule);
  for (std::size_t w = 0; w < need.size(); ++w) {
    if (limits[w] >= need[w]) continue;
    return fmt::format(
        "worker {}: a memory limit of {} {} is below {}, the number of stages of one micro-batch that the "
        "worker runs",
        w, limits[w], limits[w] == 1 ? "stash" : "stashes", need[w]);
  }
  return {};
}

int one_stash(int /*stage*/) { return 1; }

std::string memory_problem(const Schedule& schedule) {
  const auto limits = schedule.memory_limits();
  if (limits.empty()) {
    if (schedule.discipline() != Discipline::bounded) return {};
    return "the bounded discipline needs a memory limit";
  }
  if (schedule.discipline() == Discipline::greedy) {
    return "the greedy discipline keeps no memory limit; use bounded or ordered";
  }
  for (int w = 0; w < schedule.workers(); ++w) {
    const int limit = limits[index(w)];
    if (limit < 1) return fmt::format("worker {}: a memory limit of {} is below one stash", w, limit);
  }
  if (schedule.discipline() == Discipline::bounded) return bounded_problem(schedule);
  for (int w = 0; w < schedule.workers(); ++w) {
    std::string problem;
    for_each_new_stash(schedule, w, one_stash, [&](JobId id, int held) {
      if (held <= limits[index(w)] || !problem.empty()) return;
      problem = fmt::format("worker {}: {} needs stash number {}, over its memory limit of {}", w,
                            to_string(schedule.job(id)), held, limits[index(w)]);
    });
    if (!problem.empty()) return problem;
  }
  return {};
}

// Every job that waits indefinitely has a predecessor that does so too. So a walk from predecessor to
// predecessor must come back to a job that it has met.
std::vector<Job> find_cycle(const Schedule& schedule, const std::vector<int>& waiting) {
  const auto stuck = [&](JobId id) { return waiting[id] > 0; };
  JobId at = *std::ranges::find_if(schedule.order(), stuck);
  std::vector<JobId> path;
  std::vector<std::uint32_t> seen(schedule.id_count(), 0);  // 1 + index in path
  while (seen[at] == 0) {
    path.push_back(at);
    seen[at] = static_cast<std::uint32_t>(path.size());
    JobId previous = at;
    for_each_previous(schedule, at, [&](JobId id) {
      if (stuck(id)) previous = id;
    });
    at = previous;
  }
  std::vector<Job> cycle;
  for (std::size_t i = path.size(); i-- > seen[at] - 1;) cycle.push_back(schedule.job(path[i]));
  return cycle;
}

std::string describe(const std::vector<Job>& cycle) {
  constexpr std::size_t max = 12;
  std::string text = "it can never finish: ";
  for (std::size_t i = 0; i < std::min(cycle.size(), max); ++i) text += to_string(cycle[i]) + " -> ";
  if (cycle.size() > max) text += fmt::format("... ({} more) -> ", cycle.size() - max);
  return text + to_string(cycle.front()) + " is a cycle (a -> b: b waits for a)";
}

}  // namespace

CheckResult check(const Schedule& schedule) {
  CheckResult result;
  for (const JobId id : schedule.order()) {
    result.problem = out_of_range(schedule, id);
    if (!result.ok()) return result;
  }
  result.problem = copies_problem(schedule);
  if (!result.ok()) return result;
  const auto waiting = run_all(schedule, std::stack<JobId>{}, [](JobId) {});
  if (std::ranges::any_of(waiting, [](int count) { return count > 0; })) {
    result.cycle = find_cycle(schedule, waiting);
    result.problem = describe(result.cycle);
    return result;
  }
  result.problem = memory_problem(schedule);
  return result;
}

std::vector<int> stashes_in_order(const Schedule& schedule) {
  std::vector<int> max(index(schedule.workers()), 0);
  for (int w = 0; w < schedule.workers(); ++w) {
    for_each_new_stash(schedule, w, one_stash,
                       [&](JobId, int held) { max[index(w)] = std::max(max[index(w)], held); });
  }
  return max;
}

std::vector<double> memory_in_order(const Schedule& schedule, std::span<const double> sizes) {
  std::vector<double> max(index(schedule.workers()), 0);
  const auto size = [&](int stage) { return sizes[sizes.size() == 1 ? 0 : index(stage)]; };
  for (int w = 0; w < schedule.workers(); ++w) {
    for_each_new_stash(schedule, w, size,
                       [&](JobId, double held) { max[index(w)] = std::max(max[index(w)], held); });
  }
  return max;
}

std::vector<double> waiting_at_homes(const Schedule& schedule, Home home, std::span<const double> sizes) {
  std::vector<double> most(index(schedule.workers()), 0);
  for (int w = 0; w < schedule.workers() && schedule.copies(); ++w) {
    Waiting waiting;
    for (const JobId id : schedule.copies_of(w, Channel::out)) {
      const auto [s, b, pass] = schedule.job(id);
      if (pass != Pass::O || schedule.home(s, b) != home) continue;
      waiting.begin(schedule.position(schedule.stash_maker(s, b)), schedule.position(schedule.backward(s, b)),
                    sizes[sizes.size() == 1 ? 0 : index(s)]);
    }
    most[index(w)] = waiting.most();
  }
  return most;
}

std::vector<JobId> topological_order(const Schedule& schedule) {
  if (const CheckResult result = check(schedule); !result.ok()) {
    throw InputError(fmt::format("schedule {}: {}", schedule.name(), result.problem));
  }
  const auto later = [&](JobId a, JobId b) { return schedule.turn(a) > schedule.turn(b); };
  std::priority_queue<JobId, std::vector<JobId>, decltype(later)> free(later);
  std::vector<JobId> order;
  order.reserve(schedule.job_count());
  run_all(schedule, std::move(free), [&](JobId id) { order.push_back(id); });
  return order;
}

void require_few_jobs(std::string_view key, std::int64_t stages, std::int64_t microbatches,
                      std::int64_t max) {
  if (stages <= max / microbatches) return;
  throw InputError(
      fmt::format("{}: {} micro-batches of {} stages are too many jobs", key, microbatches, stages));
}

}  // namespace starpipe::plan
