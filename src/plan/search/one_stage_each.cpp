// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>
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

/// Value of a stage.
struct StageValue {
  double value;
  double min;  ///< lower bound for the values of this stage and of all longer stages with the same first unit
};

/// best[k][i]: the best value of the last k stages if they share the units from i on.
struct BestValues {
  BestValues(int stages, int units)
      : width(index(units + 1)), best(index(stages + 1) * width, infinity), next(best.size(), 0) {}
  [[nodiscard]] std::size_t at(int k, int i) const { return index(k) * width + index(i); }
  std::size_t width;
  std::vector<double> best;
  std::vector<int> next;  ///< first unit of the second of the k stages
};

/// `stage(range, following)` gives a StageValue; `combine` joins its value with the best value of the stages
/// after it.
template <class Stage, class Combine>
BestValues solve(int units, int stages, Stage stage, Combine combine) {
  BestValues table(stages, units);
  table.best[table.at(0, units)] = 0;
  for (int k = 1; k <= stages; ++k) {
    // No stage comes before the first of all stages, and none after the last.
    const int last_begin = k == stages ? 0 : units - k;
    for (int i = last_begin; i >= 0; --i) {
      double& best = table.best[table.at(k, i)];
      for (int j = k == 1 ? units : i + 1; j <= units - (k - 1); ++j) {
        const StageValue value = stage(UnitRange{i, j}, k - 1);
        if (!(value.min < best)) break;
        const double total = combine(value.value, table.best[table.at(k - 1, j)]);
        if (total >= best) continue;
        best = total;
        table.next[table.at(k, i)] = j;
      }
    }
  }
  return table;
}

std::vector<int> cuts_of(const BestValues& table, int stages) {
  std::vector<int> cuts;
  int at = 0;
  for (int k = stages; k > 1; --k) cuts.push_back(at = table.next[table.at(k, at)]);
  return cuts;
}

/// Like the table above, for workers of several kinds. best[w][k][i] is the best value of the last k stages
/// if they share the units from i on, in order, on different workers of w, w + 1, ... The dimension k is left
/// out if nothing depends on how many stages follow.
class InOrder {
 public:
  static constexpr std::size_t max_entries = 30'000'000;

  /// `stage(range, following, worker)` gives a StageValue. Throws InputError if the table would be too large.
  template <class Stage, class Combine>
  InOrder(const PartitionProblem& problem, int max, Stage stage, Combine combine)
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
            const StageValue value = stage(UnitRange{i, j}, following, w);
            if (!(value.min < best)) break;
            const double total = combine(value.value, best_[at(w + 1, following, j)]);
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

double larger(double a, double b) { return std::max(a, b); }

/// A worker, and the workers of the stages before and after its own. Without such a stage the value has no
/// effect.
struct Place {
  int before;
  int worker;
  int after;
};

/// Load and memory of a stage with `following` stages after it.
class StageCosts {
 public:
  explicit StageCosts(const PartitionProblem& problem) : problem_(problem) {}

  [[nodiscard]] StageValue memory(UnitRange range, int following) const {
    const auto [bytes, min] = problem_.memory_alone(range, following);
    return {bytes, min};
  }
  [[nodiscard]] StageValue load(UnitRange range, int following, const Place& at) const {
    const auto [bytes, min] = problem_.memory_alone(range, following);
    if (!problem_.fits(at.worker, bytes)) return {infinity, problem_.fits(at.worker, min) ? 0 : infinity};
    const double time = problem_.time(range, at.worker);
    return {time + problem_.activation_transfer(range.begin, at.before, at.worker) +
                problem_.gradient_transfer(range.end, at.after, at.worker),
            time};
  }
  /// Returns the squared load; infinite above `limit`.
  [[nodiscard]] StageValue squares(UnitRange range, int following, const Place& at, double limit) const {
    const auto [value, time] = load(range, following, at);
    if (time > limit) return {infinity, infinity};
    return {value <= limit ? value * value : infinity, time * time};
  }

 private:
  const PartitionProblem& problem_;
};

constexpr double rounding = 1 + 1e-9;

// Any worker may be left out, so the workers of the stages before and after are not known. Where links
// differ, the result is a start for a local search and no optimum; transfers then count as to and from worker
// 0.
std::optional<Stages> in_order(const PartitionProblem& problem, int max) {
  const StageCosts costs(problem);
  const InOrder min(
      problem, max,
      [&](UnitRange range, int following, int w) {
        return costs.load(range, following, {0, w, 0});
      },
      larger);
  if (min.value() == infinity) return std::nullopt;
  return InOrder(
             problem, max,
             [&, limit = min.value() * rounding](UnitRange range, int following, int w) {
               return costs.squares(range, following, {0, w, 0}, limit);
             },
             std::plus<>())
      .found();
}

/// Returns the place of the stage that `following` stages follow. `workers`: of all stages.
Place place(const std::vector<int>& workers, int following) {
  const std::size_t s = workers.size() - 1 - index(following);
  return {s == 0 ? 0 : workers[s - 1], workers[s], following == 0 ? 0 : workers[s + 1]};
}

/// Stages on workers 0, 1, ... for each number of stages up to `max`; the best of all.
std::optional<Stages> first_workers(const PartitionProblem& problem, int max) {
  const StageCosts costs(problem);
  std::vector<std::pair<double, int>> bottlenecks;  // and their numbers of stages
  std::vector<int> workers;
  const auto solved = [&](int count, auto value, auto combine) {
    workers.resize(index(count));
    std::iota(workers.begin(), workers.end(), 0);
    return solve(
        problem.units(), count,
        [&](UnitRange range, int following) { return value(range, following, place(workers, following)); },
        combine);
  };
  for (int count = max; count > 0; --count) {
    const BestValues min = solved(
        count,
        [&](UnitRange range, int following, const Place& at) { return costs.load(range, following, at); },
        larger);
    bottlenecks.emplace_back(min.best[min.at(count, 0)], count);
  }
  const auto [bottleneck, stages] = *std::ranges::min_element(
      bottlenecks, {}, [](const std::pair<double, int>& found) { return found.first; });
  if (bottleneck == infinity) return std::nullopt;
  const BestValues squares = solved(
      stages,
      [&, limit = bottleneck * rounding](UnitRange range, int following, const Place& at) {
        return costs.squares(range, following, at, limit);
      },
      std::plus<>());
  return Stages{cuts_of(squares, stages), workers};
}

}  // namespace

std::optional<Stages> one_stage_each(const PartitionProblem& problem, int max, Goal goal) {
  const int units = problem.units();
  const std::vector<int>& sequence = problem.request().stage_workers;
  const bool fewer = sequence.empty();
  const int stages = fewer ? std::min({problem.workers(), units, max}) : static_cast<int>(sequence.size());
  if (fewer && problem.is_mixed() && goal == Goal::bottleneck) return in_order(problem, stages);
  // Where the links differ, the transfers of a stage depend on its worker, and so on the number of stages.
  if (fewer && !problem.has_one_link() && goal == Goal::bottleneck) return first_workers(problem, stages);

  // The number of stages with the smallest value.
  const auto choose = [&](const BestValues& table) {
    int best = stages;
    for (int k = stages - 1; fewer && k > 0; --k) {
      if (table.best[table.at(k, 0)] < table.best[table.at(best, 0)]) best = k;
    }
    return best;
  };
  std::vector<int> workers = sequence;
  for (int s = 0; fewer && s < stages; ++s) workers.push_back(s);
  const auto with_workers = [&](const BestValues& table) {
    const int count = choose(table);
    return Stages{cuts_of(table, count), {workers.begin(), workers.begin() + count}};
  };
  const StageCosts costs(problem);
  if (goal == Goal::memory) {
    return with_workers(solve(
        units, stages, [&](UnitRange range, int following) { return costs.memory(range, following); },
        larger));
  }
  const BestValues min = solve(
      units, stages,
      [&](UnitRange range, int following) { return costs.load(range, following, place(workers, following)); },
      larger);
  const double bottleneck = min.best[min.at(choose(min), 0)];
  if (bottleneck == infinity) return std::nullopt;
  return with_workers(solve(
      units, stages,
      [&](UnitRange range, int following) {
        return costs.squares(range, following, place(workers, following), bottleneck * rounding);
      },
      std::plus<>()));
}

}  // namespace starpipe::plan
