// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>
#include <set>

#include "plan/search/partition_problem.hpp"
#include "starpipe/base/index.hpp"

// The search places the units from the last to the first, because the number of stashes of a stage depends on
// how many stages follow it. docs/partition.md has the bounds.

namespace starpipe::plan {
namespace {

/// The steps that are left and the best value so far. A branch is followed only while it may improve on that
/// value.
class Budget {
 public:
  Budget(std::int64_t steps, double best, double lower_bound)
      : steps_(steps), best_(best), lower_bound_(lower_bound) {}

  /// False once no step is left, or the best value reaches the lower bound.
  bool take_step() { return !done() && steps_-- > 0; }
  [[nodiscard]] bool done() const { return steps_ <= 0 || best_ <= lower_bound_ * (1 + 1e-9); }
  [[nodiscard]] bool ended_early() const { return steps_ <= 0; }
  [[nodiscard]] bool improves(double value) const { return value < best_ * (1 - 1e-9); }
  [[nodiscard]] double best() const { return best_; }
  void found(double value) { best_ = value; }

 private:
  std::int64_t steps_;
  double best_;
  double lower_bound_;
};

/// The search without transfers and memory limit. The order of the units then does not matter: the problem is
/// scheduling on parallel machines. Units are placed longest first; the worker that would finish the unit
/// first is tried first.
class Packing {
 public:
  Packing(const PartitionProblem& problem, Budget& budget)
      : problem_(problem),
        budget_(budget),
        loads_(index(problem.workers()), 0),
        owner_(index(problem.units())) {
    order_.resize(index(problem.units()));
    std::iota(order_.begin(), order_.end(), 0);
    std::ranges::stable_sort(order_, std::greater<>(), [&](int l) { return work(l); });
    left_.assign(order_.size() + 1, 0);
    for (std::size_t i = order_.size(); i-- > 0;) left_[i] = left_[i + 1] + work(order_[i]);
    for (int w = 0; w < problem.workers(); ++w) {
      double& shortest = shortest_.emplace_back(infinity);
      for (int l = 0; l < problem.units(); ++l) shortest = std::min(shortest, time(l, w));
    }
  }

  std::optional<std::vector<int>> run() {
    place(0, 0);
    return best_;
  }

 private:
  [[nodiscard]] double time(int unit, int worker) const { return problem_.time({unit, unit + 1}, worker); }
  [[nodiscard]] double work(int unit) const { return problem_.min_work({unit, unit + 1}); }

  /// True if the remaining units may fit below the best value. Room on a worker that is too small for its
  /// shortest unit does not count.
  [[nodiscard]] bool has_room(std::size_t position) const {
    double room = 0;
    for (std::size_t w = 0; w < loads_.size(); ++w) {
      const double left = budget_.best() - loads_[w];
      if (left >= shortest_[w]) room += problem_.speed(static_cast<int>(w)) * left;
    }
    return room >= left_[position] * (1 - 1e-12);
  }

  void place(std::size_t position, double largest) {
    if (position == order_.size()) {
      budget_.found(largest);
      best_ = owner_;
      return;
    }
    if (!budget_.take_step() || !has_room(position)) return;
    const int unit = order_[position];
    std::vector<int> workers(loads_.size());
    std::iota(workers.begin(), workers.end(), 0);
    std::ranges::stable_sort(workers, {}, [&](int w) { return loads_[index(w)] + time(unit, w); });
    std::vector<double> before(index(problem_.kinds()), -1);
    for (const int w : workers) {
      double& load = loads_[index(w)];
      double& alike = before[index(problem_.kind(w))];
      if (load == alike) continue;  // equivalent to the worker before
      alike = load;
      const double with = load + time(unit, w);
      if (!budget_.improves(with)) break;
      const double without = std::exchange(load, with);
      owner_[index(unit)] = w;
      place(position + 1, std::max(largest, with));
      load = without;
      if (budget_.done()) return;
    }
  }

  const PartitionProblem& problem_;
  Budget& budget_;
  std::vector<int> order_;        // units, longest first
  std::vector<double> left_;      // [position in order_], work of this and all later units
  std::vector<double> shortest_;  // [worker], time of its shortest unit
  std::vector<double> loads_;
  std::vector<int> owner_;
  std::optional<std::vector<int>> best_;
};

/// The search along the chain, from the last unit to the first. Each unit joins the stage of the unit after
/// it, or it is the last unit of a new stage.
class ChainSearch {
 public:
  ChainSearch(const PartitionProblem& problem, Goal goal, Budget& budget)
      : problem_(problem),
        goal_(goal),
        budget_(budget),
        sequence_(problem.request().stage_workers),
        max_stages_(placed() ? static_cast<int>(sequence_.size())
                             : problem.request().max_stages.value_or(problem.units())),
        workers_(index(problem.workers())),
        owners_(index(problem.units())) {
    // open_[n]: the workers of the first n stages of the placement.
    open_.resize(sequence_.size() + 1);
    std::vector<bool> seen(workers_.size(), false);
    for (std::size_t s = 0; s < sequence_.size(); ++s) {
      open_[s + 1] = open_[s];
      if (!seen[index(sequence_[s])]) open_[s + 1].push_back(sequence_[s]);
      seen[index(sequence_[s])] = true;
    }
    all_.resize(workers_.size());
    std::iota(all_.begin(), all_.end(), 0);
  }

  std::optional<Stages> run() {
    open_stage(problem_.units() - 1, 0, 0);
    return best_;
  }

 private:
  struct Worker {
    double value = 0;   ///< load or memory, as the goal says
    double memory = 0;  ///< bytes
    int stages = 0;
  };

  [[nodiscard]] bool placed() const { return problem_.request().allocation == Allocation::placed; }

  /// Returns a lower bound of the sum that the units before `end` add to the workers' values.
  [[nodiscard]] double rest(int end) const {
    return goal_ == Goal::bottleneck ? problem_.min_work({0, end}) : problem_.min_memory({0, end});
  }

  /// True if the units before `end` may fit on the workers that can still get units. `stage` is the stage of
  /// unit `end`, counted from the last stage.
  [[nodiscard]] bool has_room(int end, int stage) const {
    const std::vector<int>& open = placed() ? open_[sequence_.size() - index(stage)] : all_;
    double room = 0;
    for (const int w : open) {
      const double weight = goal_ == Goal::bottleneck ? problem_.speed(w) : 1;
      room += weight * std::max(0.0, budget_.best() - workers_[index(w)].value);
    }
    return room >= rest(end) * (1 - 1e-12);
  }

  /// Places `unit` on `worker` as part of the stage with `following` stages after it, then all units before
  /// it.
  void place(int unit, int worker, int following, double largest, double activation) {
    Worker& w = workers_[index(worker)];
    const Worker before = w;
    const UnitRange range{unit, unit + 1};
    owners_[index(unit)] = worker;
    const double memory = problem_.memory(range, following) + problem_.shared_memory(unit, owners_);
    w.memory += memory;
    w.value += goal_ == Goal::bottleneck ? problem_.time(range, worker) + activation : memory;
    const double largest_now = std::max(largest, w.value);
    if (budget_.improves(w.value) && (goal_ == Goal::memory || problem_.fits(worker, w.memory))) {
      go_on(unit, worker, following, largest_now);
    }
    w = before;
  }

  void go_on(int unit, int worker, int following, double largest) {
    if (unit == 0) {
      if (!placed() || following + 1 == max_stages_) keep(worker, largest);
      return;
    }
    if (!budget_.take_step() || !has_room(unit, following)) return;
    const int stages_left = max_stages_ - 1 - following;
    const bool may_stay = !placed() || unit > stages_left;
    if (may_stay) place(unit - 1, worker, following, largest, 0);
    if (stages_left == 0 || budget_.done()) return;
    starts_.push_back({unit, worker});
    open_stage(unit - 1, following + 1, largest);
    starts_.pop_back();
  }

  /// Tries a stage that ends with `unit` on each worker that may have the stage.
  void open_stage(int unit, int following, double largest) {
    if (placed()) {
      enter(unit, sequence_[sequence_.size() - 1 - index(following)], following, largest);
      return;
    }
    std::vector<int> candidates = all_;
    std::ranges::stable_sort(candidates, {}, [&](int w) { return workers_[index(w)].value; });
    std::set<std::pair<int, int>> tried_empty;  // likenesses
    for (const int w : candidates) {
      if (!starts_.empty() && starts_.back().worker == w)
        continue;  // it would be one stage with the later one
      const bool empty = workers_[index(w)].stages == 0;
      if (empty && !tried_empty.insert(problem_.likeness(w)).second) continue;  // equivalent to a tried one
      enter(unit, w, following, largest);
      if (budget_.done()) return;
    }
  }

  /// Tries that stage on `worker`. The transfers across the boundary to the next stage count for both
  /// workers.
  void enter(int unit, int worker, int following, double largest) {
    const bool crosses = !starts_.empty() && starts_.back().worker != worker && goal_ == Goal::bottleneck;
    const int next = starts_.empty() ? worker : starts_.back().worker;
    const double gradient = crosses ? problem_.gradient_transfer(unit + 1, next, worker) : 0;
    const double activation = crosses ? problem_.activation_transfer(unit + 1, worker, next) : 0;
    double after = 0;
    if (crosses) {
      double& value = workers_[index(starts_.back().worker)].value;
      after = value;
      value += activation;
      largest = std::max(largest, value);
    }
    if (budget_.improves(largest)) {
      ++workers_[index(worker)].stages;
      place(unit, worker, following, largest, gradient);
      --workers_[index(worker)].stages;
    }
    if (crosses) workers_[index(starts_.back().worker)].value = after;
  }

  void keep(int first_worker, double largest) {
    budget_.found(largest);
    best_.emplace();
    best_->workers.push_back(first_worker);
    std::for_each(starts_.rbegin(), starts_.rend(), [this](const Start& start) {
      best_->cuts.push_back(start.unit);
      best_->workers.push_back(start.worker);
    });
  }

  struct Start {
    int unit;
    int worker;
  };

  const PartitionProblem& problem_;
  Goal goal_;
  Budget& budget_;
  std::vector<int> sequence_;
  int max_stages_;
  std::vector<std::vector<int>> open_;
  std::vector<int> all_;
  std::vector<Worker> workers_;
  std::vector<int> owners_;    // of the units that are placed
  std::vector<Start> starts_;  // of the complete stages, last stage first
  std::optional<Stages> best_;
};

}  // namespace

BestStages branch_and_bound(const PartitionProblem& problem, Goal goal) {
  const PartitionRequest& request = problem.request();
  BestStages result{.stages = local_search(problem, goal), .proven = false};
  const double start = result.stages ? value_of(problem, goal, *result.stages) : infinity;
  Budget budget(request.steps, start, problem.lower_bound(goal));
  const bool free_order = request.allocation == Allocation::general && !problem.has_transfers() &&
                          goal == Goal::bottleneck && !request.max_stages && !problem.has_limit();
  if (free_order) {
    if (const auto owner = Packing(problem, budget).run()) result.stages = stages_of(*owner);
  } else if (auto stages = ChainSearch(problem, goal, budget).run()) {
    result.stages = std::move(*stages);
  }
  result.proven = !budget.ended_early();
  if (!result.proven) result.stages = iterated_local_search(problem, goal, std::move(result.stages));
  return result;
}

}  // namespace starpipe::plan
