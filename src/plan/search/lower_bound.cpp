// SPDX-License-Identifier: Apache-2.0
#include "plan/search/lower_bound.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <optional>
#include <vector>

#include "base/numbers.hpp"
#include "plan/search/homes_bound.hpp"
#include "plan/search/instance.hpp"
#include "plan/search/worker_load.hpp"
#include "plan/simulate/fetches.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/schedule/check.hpp"

// docs/search.md, "The lower bound", defines the names in `backquotes` and numbers and proves the bounds.
namespace starpipe::plan {
namespace {

/// Bounds 2 to 5: the work of a worker, with the time in which it must idle before its first B (fill) and
/// after its last F began (drain). `rate`: of copies, which make room for more F, and bring back stashes for
/// more B and W (bound 9).
double work_bound(const Load& load, double microbatches, const CopyRate& rate = {}) {
  const double work = microbatches * (load.forward + load.backward + load.weights);
  // Time of the F that can run before the first B.
  const double early_memory = load.limit + rate.memory_in(load.first_backward - rate.first_copy);
  const double early = std::min({load.first_backward - load.head, time_for(early_memory, load.forward_rate),
                                 microbatches * load.forward});
  const double idle_before = load.first_backward - early;
  // Work that can run after the last F began, this F included.
  const double late_memory = load.limit + rate.memory_in(load.from_forward - rate.after_copies);
  const double late = load.max_forward + time_for(late_memory, load.backward_rate);
  // Where copies bring back stashes faster than B and W use them, later F leave no idle time.
  const bool fast = time_for(rate.memory, load.backward_rate) >= 1;
  const double idle_after = fast ? 0 : std::max(0.0, load.from_forward - late);
  // True if fill and drain cannot overlap (bound 5).
  const bool disjoint = microbatches * load.stash > early_memory * (1 + 1e-9);
  const double bound = disjoint ? idle_before + work + idle_after
                                : std::max(idle_before + work, load.head + work + idle_after);
  return std::max(bound, idle_before + work + idle_after_backward(load, microbatches));
}

/// Bound 7: the area, memory times time, that the stashes of one micro-batch on two stages of a worker need
/// beyond the area of bound 6. It counts for micro-batches that pass neither while memory fills nor while it
/// empties. `lower`, `u`: a stage of the worker; `upper`, `v`: the worker's next stage; `below`, `m(..u)`:
/// memory of one stash each of `lower` and of the worker's stages before it.
double excess_of(const Instance& instance, const Chain& chain, const Load& load, std::size_t lower,
                 std::size_t upper, double below) {
  const auto& [F, B, W] = instance.time;
  const auto& stash = instance.stash;
  const double forward_gap = chain.forward_start[upper] - chain.forward_start[lower] - F[lower];
  const double backward_gap = chain.backward_start[lower] - chain.backward_start[upper] - B[upper];
  const auto wait = [&](double time) { return std::max(0.0, time - backward_gap); };
  // `before`: W of the upper stage runs before B of the lower stage; `after`: it runs after B.
  const double before = wait(W[upper]) * below +
                        std::min({(wait(W[upper] + load.min_forward) - wait(W[upper])) * below,
                                  load.min_forward * stash[lower], (B[lower] + W[lower]) * stash[upper]});
  const double weights = std::min(W[lower], W[upper]);
  const double after = (backward_gap + B[lower]) * stash[upper] +
                       (weights + std::min(load.min_forward, weights)) * std::min(stash[lower], stash[upper]);
  const double between_forward =
      std::min(std::max(0.0, load.min_weights - forward_gap) * below, F[lower] * stash[upper]);
  return between_forward + std::min(before, after);
}

/// Bounds 6 and 7: the makespan from which the area, memory times time, under the worker's limit holds the
/// area that its stashes need. `known`: the makespan by bounds 1 to 5.
double memory_bound(const Instance& instance, const Chain& chain, const Load& load, int worker,
                    double known) {
  if (load.stash == 0) return 0;
  // The worker never holds more than all of its stashes. With the smaller limit, the F that fill the memory
  // and the B that empty it all lie within the schedule.
  const double limit = std::min(load.limit, instance.microbatches * load.stash);
  const double fixed = load.head + load.after_backward - load.min_weights;
  const Ramps ramps = ramps_of(load, limit, known);
  // True if, in addition, no B can start while memory fills, and no F can end while it empties (bound 7).
  const bool pure =
      ramps.disjoint && load.first_backward - load.head >= ramps.up &&
      load.from_forward - load.max_forward >= load.after_backward - load.min_weights + ramps.down;

  double area = 0;
  double below = 0;
  int used = -1;  // upper stage of the last pair: pairs that share a stage are not added up
  const auto& stages = instance.stages_of[index(worker)];
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const std::size_t s = index(stages[i]);
    const double life = chain.backward_start[s] + instance.time[1][s] - chain.forward_start[s];
    area += instance.microbatches * instance.stash[s] * (life + load.min_weights);
    below += instance.stash[s];
    if (i + 1 == stages.size() || used == stages[i]) continue;
    const std::size_t next = index(stages[i + 1]);
    const double excess = excess_of(instance, chain, load, s, next, below);
    if (excess == 0) continue;
    used = stages[i + 1];
    const double min = std::min(instance.stash[s], instance.stash[next]);
    const double max_live = min > 0 ? std::floor(limit / min * (1 + 1e-9)) : infinity;
    if (pure) area += std::max(0.0, instance.microbatches - max_live) * excess;
  }
  return fixed + (area + ramps.unused) / limit;
}

double bound_of(const Instance& instance) {
  const Chain chain = chain_of(instance);
  double bound = chain.from_forward[0];
  std::vector<Load> loads;
  for (int w = 0; w < instance.workers; ++w) {
    loads.push_back(load_of(instance, chain, w));
    bound = std::max(bound, work_bound(loads.back(), instance.microbatches));
  }
  double best = bound;
  for (int w = 0; w < instance.workers; ++w) {
    best = std::max(best, memory_bound(instance, chain, loads[index(w)], w, bound));
  }
  return best;
}

// Returns a problem without slices whose lower bound also holds for `problem`. Each slice becomes a
// micro-batch that waits for no other one. On each stage all are as short and small as the shortest and
// smallest slice.
SearchProblem without_slices(const SearchProblem& problem) {
  SearchProblem free = problem;
  const int stages = static_cast<int>(problem.stage_workers.size());
  free.slices = 1;
  free.costs.slices = 1;
  free.costs.durations.clear();
  free.costs.sizes.clear();
  free.stash.clear();
  for (int s = 0; s < stages; ++s) {
    Durations shortest = problem.costs.duration(s);
    StageSizes smallest = problem.costs.size(s);
    double stash = infinity;
    for (int k = 0; k < problem.slices; ++k) {
      for (const PassTime& pass : pass_times)
        shortest.*pass.time = std::min(shortest.*pass.time, problem.costs.duration(s, k).*pass.time);
      smallest.activation = std::min(smallest.activation, problem.costs.size(s, k).activation);
      smallest.gradient = std::min(smallest.gradient, problem.costs.size(s, k).gradient);
      stash = std::min(stash, problem.stash[problem.stash.size() == 1 ? 0 : index(s * problem.slices + k)]);
    }
    free.costs.durations.push_back(shortest);
    free.costs.sizes.push_back(smallest);
    free.stash.push_back(stash);
  }
  return free;
}

}  // namespace

double lower_bound(const SearchProblem& problem) {
  const Instance instance(problem);
  if (problem.slices > 1) {
    const Schedule any = to_schedule(instance, Orders(index(instance.workers)));
    return std::max(placement_bound(any.with(Discipline::greedy), problem.costs),
                    lower_bound(without_slices(problem)));
  }
  if (problem.keeps_all()) return bound_of(instance);
  // Without R, copies and a limit, a schedule that has them takes at most as long.
  SearchProblem unlimited = problem;
  unlimited.memory_limits = {infinity};
  double bound = bound_of(Instance(unlimited));
  const Chain chain = chain_of(instance);
  std::vector<Load> loads;
  for (int w = 0; w < instance.workers; ++w) loads.push_back(load_of(instance, chain, w));
  for (int w = 0; w < instance.workers; ++w) {
    const CopyRate rate = copy_rate_of(instance, chain, w);
    const double n = instance.microbatches;
    const auto remaking = problem.may_recompute ? std::optional(problem.remaking) : std::nullopt;
    bound = std::max(bound, ends_bound(loads[index(w)], n, rate, remaking));
    if (!problem.may_recompute) bound = std::max(bound, work_bound(loads[index(w)], n, rate));
  }
  if (problem.may_copy()) return copies_bound(instance, chain, loads, problem.may_recompute, bound);
  double best = bound;
  for (int w = 0; w < instance.workers; ++w)
    best = std::max(best, recomputation_bound(instance, chain, loads[index(w)], w, bound));
  return best;
}

double min_memory_limit(const SearchProblem& problem) {
  const Instance instance(problem);
  double min = 0;
  for (int w = 0; w < instance.workers; ++w)
    min = std::max(min, problem.keeps_all() ? instance.min_memory(w) : instance.largest_stash(w));
  return min;
}

double bound_of_makespan(double bound, double makespan) {
  return bound > makespan && bound <= makespan * (1 + 1e-9) ? makespan : bound;
}

namespace {

// Returns the most time that pairs can save the worker, whatever the order: each backward pass runs with the
// longest F at best, and there are no more pairs than F. W of a split pass may be part of the pair: F then
// runs with BW.
double max_saved_by_pairs(const Schedule& schedule, const Costs& costs, int worker) {
  if (!costs.overlap) return 0;
  std::vector<Job> forward;
  std::vector<Job> backward;
  for (const JobId id : schedule.order(worker)) {
    const Job job = schedule.job(id);
    if (job.pass == Pass::F) forward.push_back(job);
    if (gives_input_gradient(job.pass)) backward.push_back(job);
  }
  if (forward.empty()) return 0;
  const Job longest =
      *std::ranges::max_element(forward, {}, [&](const Job& job) { return costs.duration(job).F; });
  const double f = costs.duration(longest).F;
  std::vector<double> saved;
  for (const Job& job : backward) {
    double most = 0;
    for (const Pass pass : {job.pass, Pass::BW}) {
      const double b = costs.duration(job).of(pass);
      const double time = costs.pair_time(longest, {job.stage, job.microbatch, pass});
      most = std::max(most, std::min({f + b - time, f, b}));
    }
    saved.push_back(most);
  }
  std::ranges::sort(saved, std::greater<>{});
  saved.resize(std::min(saved.size(), forward.size()));
  return std::accumulate(saved.begin(), saved.end(), 0.0);
}

}  // namespace

Schedule with_split_passes(const Schedule& schedule) {
  ScheduleSpec spec = schedule.spec();
  spec.split_backward = [](int, int) { return true; };
  spec.placement = [&](const Job& job) {
    return schedule.placement(job.pass == Pass::F ? schedule.forward(job.stage, job.microbatch)
                                                  : schedule.backward(job.stage, job.microbatch));
  };
  spec.priority = [](const Job&) { return 0; };
  spec.discipline = Discipline::greedy;
  spec.memory_limits = {};
  spec.home = {};
  spec.pairs = false;
  return Schedule(spec);
}

double placement_bound(const Schedule& given, const Costs& costs) {
  const Schedule schedule = given.without_pairs();  // a job of a pair takes at least as long as alone
  const Fetches fetches(schedule, costs);
  // Calls f(job that `id` waits for, shortest time between the two).
  const auto for_each_wait = [&](JobId id, auto&& f) {
    std::vector<JobId> before;
    schedule.for_each_pred(id, [&](JobId other) { before.push_back(other); });
    schedule.for_each_before_by_n(id, [&](JobId) { before.pop_back(); });  // they come last; n is not given
    for (const JobId other : before) f(other, 0.0);
    if (!costs.prefetch) return;
    fetches.for_each(id, [&](const Fetch& fetch) {
      if (fetch.kind == Fetch::Kind::weights) return;
      f(fetch.producer, costs.link(fetch.from, schedule.compute(id)).time(fetch.bytes));
    });
  };
  const auto duration = [&](JobId id) { return costs.time(schedule, id); };
  const std::vector<JobId> order = topological_order(schedule);
  std::vector<double> start(schedule.id_count(), 0);  // earliest
  std::vector<double> after(schedule.id_count(), 0);  // shortest time from the job's end to the end of all
  for (const JobId id : order) {
    for_each_wait(id, [&](JobId before, double time) {
      start[id] = std::max(start[id], start[before] + duration(before) + time);
    });
  }
  for (const JobId id : std::vector<JobId>(order.rbegin(), order.rend())) {
    for_each_wait(id, [&](JobId before, double time) {
      after[before] = std::max(after[before], time + duration(id) + after[id]);
    });
  }
  double bound = 0;
  for (int w = 0; w < schedule.workers(); ++w) {
    double work = 0;
    double first = infinity;
    double last = first;
    for (const JobId id : schedule.order(w)) {
      bound = std::max(bound, start[id] + duration(id) + after[id]);
      work += duration(id);
      first = std::min(first, start[id]);
      last = std::min(last, after[id]);
    }
    if (work > 0) bound = std::max(bound, first + work - max_saved_by_pairs(schedule, costs, w) + last);
  }
  return bound;
}

}  // namespace starpipe::plan
