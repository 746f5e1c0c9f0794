// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>
#include <tuple>

#include "plan/search/partition_problem.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/base/random.hpp"

namespace starpipe::plan {
namespace {

/// Bytes above the memory limit, largest value, sum of squared values: compared in this order, smaller is
/// better.
using Score = std::tuple<double, double, double>;

class LocalSearch {
 public:
  LocalSearch(const PartitionProblem& problem, Goal goal) : problem_(problem), goal_(goal) {}

  [[nodiscard]] Score score(const Stages& stages) const {
    double excess = 0;
    double largest = 0;
    double squares = 0;
    int worker = 0;
    for (const WorkerLoad& load : problem_.loads(stages)) {
      const double value = goal_ == Goal::bottleneck ? load.load() : load.memory;
      largest = std::max(largest, value);
      squares += value * value;
      if (goal_ == Goal::bottleneck && !problem_.fits(worker, load.memory)) {
        excess += load.memory - problem_.limit(worker);
      }
      ++worker;
    }
    return {excess, largest, squares};
  }

  /// Shakes and improves the best partition until it reaches the lower bound or the work is spent.
  void iterate() {
    const double bound = problem_.lower_bound(goal_) * (1 + 1e-9);
    Random random(1);
    while (best_ && left_ > 0 && std::get<1>(score(*best_)) > bound) {
      left_ -= problem_.units();
      improve(shaken(*best_, random));
    }
  }

  /// Improves `start` and keeps the result if it is the best so far.
  void improve(Stages start) {
    if (!allowed(start)) return;
    Score best = score(start);
    if (problem_.request().allocation == Allocation::placed) {
      while (move_cuts(start, best)) {
      }
    } else {
      std::vector<int> owner = owners(start);
      while (move_a_unit(owner, best) || swap_units(owner, best)) {
      }
      start = stages_of(owner);
    }
    if (best_ && score(*best_) <= best) return;
    best_ = std::move(start);
  }

  [[nodiscard]] std::optional<Stages> best() const {
    if (!best_ || std::get<0>(score(*best_)) > 0) return std::nullopt;
    return best_;
  }

 private:
  /// Returns the stages with some cuts, or the workers of some units, changed at random.
  [[nodiscard]] Stages shaken(Stages stages, Random& random) const {
    constexpr int changes = 4;
    if (problem_.request().allocation != Allocation::placed) {
      std::vector<int> owner = owners(stages);
      for (int i = 0; i < changes; ++i) {
        owner[random.below(owner.size())] = random.between(0, problem_.workers() - 1);
      }
      return stages_of(owner);
    }
    std::vector<int>& cuts = stages.cuts;
    for (int i = 0; i < changes && !cuts.empty(); ++i) {
      const std::size_t c = random.below(cuts.size());
      cuts[c] = random.between(c == 0 ? 1 : cuts[c - 1] + 1,
                               (c + 1 == cuts.size() ? problem_.units() : cuts[c + 1]) - 1);
    }
    return stages;
  }

  [[nodiscard]] std::vector<int> owners(const Stages& stages) const {
    std::vector<int> owner(index(problem_.units()));
    for (int s = 0; s < stages.size(); ++s) {
      const UnitRange range = problem_.range(stages, s);
      std::fill(owner.begin() + range.begin, owner.begin() + range.end, stages.workers[index(s)]);
    }
    return owner;
  }

  [[nodiscard]] bool allowed(const Stages& stages) const {
    return stages.size() <= problem_.request().max_stages.value_or(problem_.units());
  }

  /// Returns true if the stages are better than `best`, which then becomes their score.
  bool accept(const Stages& stages, Score& best) {
    const bool placed = problem_.request().allocation == Allocation::placed;
    left_ -= problem_.workers() + (placed ? stages.size() : problem_.units());
    if (!allowed(stages)) return false;
    const Score now = score(stages);
    Score limit = best;
    std::get<2>(limit) -= 1e-12 * std::get<2>(best);  // rounding must not make the search go in circles
    if (now >= limit) return false;
    best = now;
    return true;
  }

  /// Moves one cut anywhere between its neighbours, or several neighbouring cuts by one unit, if that helps.
  bool move_cuts(Stages& stages, Score& best) {
    std::vector<int>& cuts = stages.cuts;
    const auto bound = [&](std::size_t c) { return c == cuts.size() ? problem_.units() : cuts[c]; };
    for (std::size_t c = 0; c < cuts.size(); ++c) {
      const int old = cuts[c];
      for (int cut = c == 0 ? 1 : cuts[c - 1] + 1; cut < bound(c + 1) && left_ > 0; ++cut) {
        cuts[c] = cut;
        if (cut != old && accept(stages, best)) return true;
      }
      cuts[c] = old;
    }
    for (std::size_t first = 0; first < cuts.size(); ++first) {
      for (std::size_t last = first + 1; last < cuts.size() && left_ > 0; ++last) {
        for (const int by : {-1, 1}) {
          const int before = first == 0 ? 0 : cuts[first - 1];
          if (cuts[first] + by <= before || cuts[last] + by >= bound(last + 1)) continue;
          for (std::size_t c = first; c <= last; ++c) cuts[c] += by;
          if (accept(stages, best)) return true;
          for (std::size_t c = first; c <= last; ++c) cuts[c] -= by;
        }
      }
    }
    return false;
  }

  /// Moves one unit to another worker, if that helps.
  bool move_a_unit(std::vector<int>& owner, Score& best) {
    for (int& worker : owner) {
      const int old = worker;
      for (int w = 0; w < problem_.workers() && left_ > 0; ++w) {
        worker = w;
        if (w != old && accept(stages_of(owner), best)) return true;
      }
      worker = old;
    }
    return false;
  }

  /// Swaps the workers of two units, if that helps.
  bool swap_units(std::vector<int>& owner, Score& best) {
    for (std::size_t a = 0; a < owner.size(); ++a) {
      for (std::size_t b = a + 1; b < owner.size() && left_ > 0; ++b) {
        if (owner[a] == owner[b]) continue;
        std::swap(owner[a], owner[b]);
        if (accept(stages_of(owner), best)) return true;
        std::swap(owner[a], owner[b]);
      }
    }
    return false;
  }

  const PartitionProblem& problem_;
  Goal goal_;
  std::int64_t left_ = 50'000'000;  // work left, in units (or stages) and workers that a score reads
  std::optional<Stages> best_;
};

/// Places the longest unit first, each on the worker that finishes it first.
Stages greedy(const PartitionProblem& problem) {
  const auto time = [&](int unit, int worker) { return problem.time({unit, unit + 1}, worker); };
  std::vector<int> order(index(problem.units()));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater<>(), [&](int unit) {
    return problem.min_work({unit, unit + 1});
  });
  std::vector<double> loads(index(problem.workers()), 0);
  std::vector<int> owner(order.size());
  for (const int unit : order) {
    int best = 0;
    for (int w = 1; w < problem.workers(); ++w) {
      if (loads[index(w)] + time(unit, w) < loads[index(best)] + time(unit, best)) best = w;
    }
    loads[index(best)] += time(unit, best);
    owner[index(unit)] = best;
  }
  return stages_of(owner);
}

}  // namespace

double value_of(const PartitionProblem& problem, Goal goal, const Stages& stages) {
  return std::get<1>(LocalSearch(problem, goal).score(stages));
}

Stages stages_of(const std::vector<int>& owner) {
  Stages stages;
  for (std::size_t l = 0; l < owner.size(); ++l) {
    if (l > 0 && owner[l] == owner[l - 1]) continue;
    if (l > 0) stages.cuts.push_back(static_cast<int>(l));
    stages.workers.push_back(owner[l]);
  }
  return stages;
}

std::optional<Stages> local_search(const PartitionProblem& problem, Goal goal) {
  const PartitionRequest& request = problem.request();
  LocalSearch search(problem, goal);
  const bool placed = request.allocation == Allocation::placed;
  // The start for the goal keeps the memory limit; the start with the smallest memory may become better.
  for (const Goal start : {goal, Goal::memory}) {
    auto found = one_stage_each(problem, request.max_stages.value_or(problem.units()), start);
    if (found) search.improve(std::move(*found));
  }
  if (!placed) search.improve(greedy(problem));
  return search.best();
}

std::optional<Stages> iterated_local_search(const PartitionProblem& problem, Goal goal,
                                            std::optional<Stages> start) {
  if (!start) return std::nullopt;
  LocalSearch search(problem, goal);
  search.improve(std::move(*start));
  search.iterate();
  return search.best();
}

}  // namespace starpipe::plan
