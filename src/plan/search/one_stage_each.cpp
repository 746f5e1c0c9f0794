// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "plan/search/partition_problem.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"

// Dynamic programming goes from the last stage to the first, because the number of stashes of a stage depends
// on how many stages follow it. docs/partition.md has the recurrences.

namespace starpipe::plan {
namespace {

/// A worker, and the workers of the stages before and after its own. Without such a stage the value has no
/// effect.
struct Place {
  int before;
  int worker;
  int after;
};

/// The values of stages, and how they add up. A stage's value is its memory, or its load within the worker's
/// memory limit; the largest counts. With a `limit`, the value is the squared load, infinite for loads above
/// the limit; the sum counts.
class StageValues {
 public:
  StageValues(const PartitionProblem& problem, Goal goal, double limit = infinity)
      : problem_(problem), goal_(goal), limit_(limit) {}

  /// Returns the value of a stage with `following` stages after it.
  [[nodiscard]] StageValue of(UnitRange range, int following, const Place& at) const {
    const StageValue memory = problem_.memory_alone(range, following);
    if (goal_ == Goal::memory) return memory;
    if (!problem_.fits(at.worker, memory.value))
      return {infinity, problem_.fits(at.worker, memory.min) ? 0 : infinity};
    const double time = problem_.time(range, at.worker);
    const double load = time + problem_.activation_transfer(range.begin, at.before, at.worker) +
                        problem_.gradient_transfer(range.end, at.after, at.worker);
    if (limit_ == infinity) return {load, time};
    if (time > limit_) return {infinity, infinity};
    return {load <= limit_ ? load * load : infinity, time * time};
  }

  /// Returns the value of a stage and the stages after it.
  [[nodiscard]] double join(double stage, double after) const {
    return limit_ == infinity ? std::max(stage, after) : stage + after;
  }

 private:
  const PartitionProblem& problem_;
  Goal goal_;
  double limit_;
};

/// best[k][i]: the best value of the last k stages if they share the units from i on. Stage s is on
/// `workers[s]`.
class OnWorkers {
 public:
  OnWorkers(const PartitionProblem& problem, const std::vector<int>& workers, const StageValues& values)
      : workers_(workers),
        stages_(static_cast<int>(workers.size())),
        width_(index(problem.units() + 1)),
        best_((workers.size() + 1) * width_, infinity),
        next_(best_.size(), 0) {
    const int units = problem.units();
    best_[at(0, units)] = 0;
    for (int k = 1; k <= stages_; ++k) {
      const Place place = place_of(stages_ - k);
      // No stage comes before the first of all stages, and none after the last.
      const int last_begin = k == stages_ ? 0 : units - k;
      for (int i = last_begin; i >= 0; --i) {
        double& best = best_[at(k, i)];
        for (int j = k == 1 ? units : i + 1; j <= units - (k - 1); ++j) {
          const StageValue stage = values.of(UnitRange{i, j}, k - 1, place);
          if (!(stage.min < best)) break;
          const double total = values.join(stage.value, best_[at(k - 1, j)]);
          if (total >= best) continue;
          best = total;
          next_[at(k, i)] = j;
        }
      }
    }
  }

  /// Returns the value of the last `count` stages if they share all units.
  [[nodiscard]] double value(int count) const { return best_[at(count, 0)]; }
  /// Returns the number of stages with the smallest value; with equal values, the largest such number.
  [[nodiscard]] int best_count() const {
    int best = stages_;
    for (int k = stages_ - 1; k > 0; --k) {
      if (value(k) < value(best)) best = k;
    }
    return best;
  }
  /// Returns `count` stages on the first workers.
  [[nodiscard]] Stages found(int count) const {
    Stages result{.cuts = {}, .workers = {workers_.begin(), workers_.begin() + count}};
    for (int k = count, at_unit = 0; k > 1; --k) {
      at_unit = next_[at(k, at_unit)];
      result.cuts.push_back(at_unit);
    }
    return result;
  }

 private:
  [[nodiscard]] std::size_t at(int k, int i) const { return index(k) * width_ + index(i); }
  [[nodiscard]] Place place_of(int stage) const {
    const auto s = index(stage);
    return {.before = s == 0 ? 0 : workers_[s - 1],
            .worker = workers_[s],
            .after = s + 1 == workers_.size() ? 0 : workers_[s + 1]};
  }

  const std::vector<int>& workers_;
  int stages_;
  std::size_t width_;
  std::vector<double> best_;
  std::vector<int> next_;  ///< first unit of the second of the k stages
};

/// Like the table above, for workers of several kinds. best[w][k][i] is the best value of the last k stages
/// if they share the units from i on, in order, on different workers of w, w + 1, ... The dimension k is left
/// out if nothing depends on how many stages follow.
class InOrder {
 public:
  static constexpr std::size_t max_entries = 30'000'000;

  /// Throws InputError if the table would be too large. Any worker may be left out, so the workers of the
  /// stages before and after are not known: transfers count as to and from worker 0.
  InOrder(const PartitionProblem& problem, int max, const StageValues& values)
      : workers_(problem.workers()),
        units_(problem.units()),
        max_stages_(problem.has_limit() || max < std::min(workers_, units_) ? max : 0) {
    const std::size_t entries = (index(workers_) + 1) * (index(max_stages_) + 1) * (index(units_) + 1);
    if (entries > max_entries) {
      throw InputError(fmt::format(
          "partition: {} workers of several kinds and {} units are too many within a memory limit", workers_,
          units_));
    }
    best_.assign(entries, infinity);
    next_.assign(entries, 0);
    best_[at(workers_, 0, units_)] = 0;
    for (int w = workers_ - 1; w >= 0; --w) {
      for (int k = 0; k <= max_stages_; ++k) {
        for (int i = units_; i >= 0; --i) {
          double& best = best_[at(w, k, i)];
          best = best_[at(w + 1, k, i)];  // no stage on this worker
          if (k == 0 && max_stages_ > 0) continue;
          const int following = std::max(0, k - 1);
          for (int j = i + 1; j <= units_; ++j) {
            const StageValue stage = values.of(UnitRange{i, j}, following, {0, w, 0});
            if (!(stage.min < best)) break;
            const double total = values.join(stage.value, best_[at(w + 1, following, j)]);
            if (total >= best) continue;
            best = total;
            next_[at(w, k, i)] = j;
          }
        }
      }
    }
  }

  [[nodiscard]] double value() const { return best_[at(0, stages(), 0)]; }

  [[nodiscard]] Stages found() const {
    Stages result;
    int k = stages();
    for (int w = 0, i = 0; w < workers_; ++w) {
      const int next = next_[at(w, k, i)];
      if (next == 0) continue;
      if (i > 0) result.cuts.push_back(i);
      result.workers.push_back(w);
      i = next;
      k = std::max(0, k - 1);
    }
    return result;
  }

 private:
  [[nodiscard]] std::size_t at(int w, int k, int i) const {
    return (index(w) * (index(max_stages_) + 1) + index(k)) * (index(units_) + 1) + index(i);
  }
  /// Returns the best number of stages.
  [[nodiscard]] int stages() const {
    int best = 0;
    for (int k = 1; k <= max_stages_; ++k) {
      if (best_[at(0, k, 0)] < best_[at(0, best, 0)]) best = k;
    }
    return best;
  }

  int workers_;
  int units_;
  int max_stages_;
  std::vector<double> best_;
  std::vector<int> next_;  ///< end of the stage on this worker; 0: no stage
};

/// Returns the values with which a solution with this bottleneck is balanced: the sum of the squared loads.
StageValues squares(const PartitionProblem& problem, double bottleneck) {
  return {problem, Goal::bottleneck, bottleneck * (1 + 1e-9)};
}

// Where links differ, the result is a start for a local search and no optimum.
std::optional<Stages> in_order(const PartitionProblem& problem, int max) {
  const double bottleneck = InOrder(problem, max, {problem, Goal::bottleneck}).value();
  if (bottleneck == infinity) return std::nullopt;
  return InOrder(problem, max, squares(problem, bottleneck)).found();
}

/// Returns the best stages on workers 0, 1, ..., of all numbers of stages up to `max`.
std::optional<Stages> first_workers(const PartitionProblem& problem, int max) {
  std::vector<int> workers(index(max));
  std::iota(workers.begin(), workers.end(), 0);
  double bottleneck = infinity;
  std::vector<int> best;
  for (; !workers.empty(); workers.pop_back()) {
    const auto count = static_cast<int>(workers.size());
    const double found = OnWorkers(problem, workers, {problem, Goal::bottleneck}).value(count);
    if (found >= bottleneck) continue;
    bottleneck = found;
    best = workers;
  }
  if (best.empty()) return std::nullopt;
  return OnWorkers(problem, best, squares(problem, bottleneck)).found(static_cast<int>(best.size()));
}

}  // namespace

std::optional<Stages> one_stage_each(const PartitionProblem& problem, int max, Goal goal) {
  std::vector<int> workers = problem.request().stage_workers;
  const bool fewer = workers.empty();
  const int stages =
      fewer ? std::min({problem.workers(), problem.units(), max}) : static_cast<int>(workers.size());
  if (fewer && problem.is_mixed() && goal == Goal::bottleneck) return in_order(problem, stages);
  // Where the links differ, the transfers of a stage depend on its worker, and so on the number of stages.
  if (fewer && !problem.has_one_link() && goal == Goal::bottleneck) return first_workers(problem, stages);

  for (int s = 0; fewer && s < stages; ++s) workers.push_back(s);
  const auto count = [&](const OnWorkers& table) { return fewer ? table.best_count() : stages; };
  const OnWorkers min(problem, workers, {problem, goal});
  if (goal == Goal::memory) return min.found(count(min));
  const double bottleneck = min.value(count(min));
  if (bottleneck == infinity) return std::nullopt;
  const OnWorkers balanced(problem, workers, squares(problem, bottleneck));
  return balanced.found(count(balanced));
}

}  // namespace starpipe::plan
