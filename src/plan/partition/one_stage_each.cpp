// SPDX-License-Identifier: Apache-2.0
#include "plan/partition/one_stage_each.hpp"

// Dynamic programming from the last stage to the first, since what a stage holds follows from how many come
// after it. docs/partition.md has the recurrences.
#include <algorithm>
#include <functional>
#include <limits>

#include <fmt/format.h>

#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::plan::detail {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

struct StageValue {
  double value;
  double least;  ///< of this stage and of every one that starts here and is longer
};

/// best[k][i]: the k last stages share the units from i on.
struct Table {
  Table(int stages, int units)
      : width(static_cast<std::size_t>(units) + 1),
        best((static_cast<std::size_t>(stages) + 1) * width, infinity),
        next(best.size(), 0) {}
  [[nodiscard]] std::size_t at(int k, int i) const {
    return static_cast<std::size_t>(k) * width + static_cast<std::size_t>(i);
  }
  std::size_t width;
  std::vector<double> best;
  std::vector<int> next;  ///< where the second of the k stages starts
};

/// `stage(range, following)` gives a StageValue, `combine` joins it with the best of the stages after it.
template <class Stage, class Combine>
Table solve(int units, int stages, Stage stage, Combine combine) {
  Table table(stages, units);
  table.best[table.at(0, units)] = 0;
  for (int k = 1; k <= stages; ++k) {
    for (int i = units - k; i >= 0; --i) {
      double& best = table.best[table.at(k, i)];
      for (int j = i + 1; j <= units - (k - 1); ++j) {
        const StageValue value = stage(UnitRange{i, j}, k - 1);
        if (!(value.least < best)) break;
        const double total = combine(value.value, table.best[table.at(k - 1, j)]);
        if (total >= best) continue;
        best = total;
        table.next[table.at(k, i)] = j;
      }
    }
  }
  return table;
}

std::vector<int> cuts_of(const Table& table, int stages) {
  std::vector<int> cuts;
  int at = 0;
  for (int k = stages; k > 1; --k) cuts.push_back(at = table.next[table.at(k, at)]);
  return cuts;
}

/// best[w][k][i]: the k last stages share the units from i on, each on a worker of its own, from w on and in
/// their order. Where nothing depends on how many stages follow, k is left out.
class InOrder {
 public:
  static constexpr std::size_t most_entries = 30'000'000;

  /// `stage(range, following, worker)`. Throws InputError where the table would be too large.
  template <class Stage, class Combine>
  InOrder(const PartitionProblem& problem, int most, Stage stage, Combine combine)
      : workers_(problem.workers()),
        units_(problem.units()),
        most_(problem.request().memory_limit < infinity || most < std::min(workers_, units_) ? most : 0) {
    const std::size_t entries = (index(workers_) + 1) * (index(most_) + 1) * (index(units_) + 1);
    if (entries > most_entries) {
      throw InputError(fmt::format(
          "partition: {} workers of several kinds and {} units are too many within a memory limit", workers_,
          units_));
    }
    best_.assign(entries, infinity);
    next_.assign(entries, 0);
    best_[at(workers_, 0, units_)] = 0;
    for (int w = workers_ - 1; w >= 0; --w) {
      for (int k = 0; k <= most_; ++k) {
        for (int i = units_; i >= 0; --i) {
          double& best = best_[at(w, k, i)];
          best = best_[at(w + 1, k, i)];  // without this worker
          if (k == 0 && most_ > 0) continue;
          const int following = std::max(0, k - 1);
          for (int j = i + 1; j <= units_; ++j) {
            const StageValue value = stage(UnitRange{i, j}, following, w);
            if (!(value.least < best)) break;
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
    return (index(w) * (index(most_) + 1) + index(k)) * (index(units_) + 1) + index(i);
  }
  /// That are best.
  [[nodiscard]] int stages() const {
    int best = 0;
    for (int k = 1; k <= most_; ++k) {
      if (best_[at(0, k, 0)] < best_[at(0, best, 0)]) best = k;
    }
    return best;
  }

  int workers_;
  int units_;
  int most_;
  std::vector<double> best_;
  std::vector<int> next_;  ///< where the stage on this worker ends; 0: it has none
};

double larger(double a, double b) { return std::max(a, b); }

/// Load and memory of a stage with `following` stages after it.
class Costs {
 public:
  explicit Costs(const PartitionProblem& problem) : problem_(problem) {}

  [[nodiscard]] StageValue memory(UnitRange range, int following) const {
    const double memory = problem_.memory(range, following);
    return {memory, memory};
  }
  [[nodiscard]] StageValue load(UnitRange range, int following, int worker) const {
    if (!problem_.fits(problem_.memory(range, following))) return {infinity, infinity};
    const double time = problem_.time(range, worker);
    return {time + problem_.activation_transfer(range.begin) + problem_.gradient_transfer(range.end), time};
  }
  /// To be summed.
  [[nodiscard]] StageValue squares(UnitRange range, int following, int worker, double limit) const {
    const auto [value, time] = load(range, following, worker);
    if (time > limit) return {infinity, infinity};
    return {value <= limit ? value * value : infinity, time * time};
  }

 private:
  const PartitionProblem& problem_;
};

constexpr double rounding = 1 + 1e-9;

std::optional<Stages> in_order(const PartitionProblem& problem, int most) {
  const Costs costs(problem);
  const InOrder least(
      problem, most, [&](UnitRange range, int following, int w) { return costs.load(range, following, w); },
      larger);
  if (least.value() == infinity) return std::nullopt;
  return InOrder(
             problem, most,
             [&, limit = least.value() * rounding](UnitRange range, int following, int w) {
               return costs.squares(range, following, w, limit);
             },
             std::plus<>())
      .found();
}

}  // namespace

std::optional<Stages> one_stage_each(const PartitionProblem& problem, int most, Goal goal) {
  const int units = problem.units();
  const std::vector<int>& sequence = problem.request().stage_workers;
  const bool fewer = sequence.empty();
  const int stages = fewer ? std::min({problem.workers(), units, most}) : static_cast<int>(sequence.size());
  if (fewer && problem.is_mixed() && goal == Goal::bottleneck) return in_order(problem, stages);

  // The number of stages with the smallest value, and their cuts.
  const auto choose = [&](const Table& table) {
    int best = stages;
    for (int k = stages - 1; fewer && k > 0; --k) {
      if (table.best[table.at(k, 0)] < table.best[table.at(best, 0)]) best = k;
    }
    return best;
  };
  const auto with_workers = [&](const Table& table) {
    Stages found{cuts_of(table, choose(table)), sequence};
    for (std::size_t s = 0; fewer && s <= found.cuts.size(); ++s)
      found.workers.push_back(static_cast<int>(s));
    return found;
  };
  const Costs costs(problem);
  if (goal == Goal::memory) {
    return with_workers(solve(
        units, stages, [&](UnitRange range, int following) { return costs.memory(range, following); },
        larger));
  }
  const auto worker = [&](int following) {  // any, where all are alike
    return fewer ? 0 : sequence[sequence.size() - 1 - static_cast<std::size_t>(following)];
  };
  const Table least = solve(
      units, stages,
      [&](UnitRange range, int following) { return costs.load(range, following, worker(following)); },
      larger);
  const double bottleneck = least.best[least.at(choose(least), 0)];
  if (bottleneck == infinity) return std::nullopt;
  return with_workers(solve(
      units, stages,
      [&](UnitRange range, int following) {
        return costs.squares(range, following, worker(following), bottleneck * rounding);
      },
      std::plus<>()));
}

}  // namespace starpipe::plan::detail
