// SPDX-License-Identifier: Apache-2.0
// Dynamic programming from the last stage to the first, since what a stage holds follows from how many come
// after it. docs/partition.md has the recurrences.
#include <algorithm>
#include <limits>

#include "plan/partition/problem.hpp"

namespace starpipe::plan::detail {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

struct StageValue {
  double value;
  double least;  ///< of this stage and of every one that starts here and is longer
};

/// best[k][i]: the k last stages share the layers from i on.
struct Table {
  Table(int stages, int layers)
      : width(static_cast<std::size_t>(layers) + 1),
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
Table solve(int layers, int stages, Stage stage, Combine combine) {
  Table table(stages, layers);
  table.best[table.at(0, layers)] = 0;
  for (int k = 1; k <= stages; ++k) {
    for (int i = layers - k; i >= 0; --i) {
      double& best = table.best[table.at(k, i)];
      for (int j = i + 1; j <= layers - (k - 1); ++j) {
        const StageValue value = stage(LayerRange{i, j}, k - 1);
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

}  // namespace

std::optional<std::vector<int>> contiguous_cuts(const PartitionProblem& problem, int stages, bool fewer,
                                                Goal goal) {
  const int layers = problem.layers();
  const auto larger = [](double a, double b) { return std::max(a, b); };
  // The number of stages with the smallest value, and that value.
  const auto choose = [&](const Table& table) {
    int best = stages;
    for (int k = stages - 1; fewer && k > 0; --k) {
      if (table.best[table.at(k, 0)] < table.best[table.at(best, 0)]) best = k;
    }
    return best;
  };
  if (goal == Goal::memory) {
    const Table table = solve(
        layers, stages,
        [&](LayerRange range, int following) {
          const double memory = problem.memory(range, following);
          return StageValue{memory, memory};
        },
        larger);
    return cuts_of(table, choose(table));
  }

  const auto load = [&](LayerRange range) {
    return problem.time(range) + problem.activation_transfer(range.begin) +
           problem.gradient_transfer(range.end);
  };
  const Table least = solve(
      layers, stages,
      [&](LayerRange range, int following) {
        if (!problem.fits(problem.memory(range, following))) return StageValue{infinity, infinity};
        return StageValue{load(range), problem.time(range)};
      },
      larger);
  const double bottleneck = least.best[least.at(choose(least), 0)];
  if (bottleneck == infinity) return std::nullopt;

  const double limit = bottleneck * (1 + 1e-9);
  const Table even = solve(
      layers, stages,
      [&](LayerRange range, int following) {
        const double time = problem.time(range);
        if (time > limit || !problem.fits(problem.memory(range, following))) {
          return StageValue{infinity, infinity};
        }
        const double value = load(range);
        return StageValue{value <= limit ? value * value : infinity, time * time};
      },
      [](double a, double b) { return a + b; });
  return cuts_of(even, choose(even));
}

}  // namespace starpipe::plan::detail
