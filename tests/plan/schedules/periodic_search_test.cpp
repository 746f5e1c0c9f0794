// SPDX-License-Identifier: Apache-2.0
// Pipelined Model Parallelism, section 5.2: k-periodic patterns, against simulate over all orders.
#include <algorithm>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/schedules/periodic_chains.hpp"
#include "starpipe/plan/schedules/orders.hpp"
#include "starpipe/plan/simulate/simulate.hpp"

namespace starpipe::plan {
namespace {

using testing::Chain;
using testing::costs_of;
using ::testing::Each;
using testing::equal_stages;
using testing::growth;
using ::testing::Le;
using testing::random_chain;
using testing::random_integer_chain;
using testing::timetable_works;

/// The instance of theorem 4, for k.
Chain theorem4(int k) {
  Chain chain = equal_stages(k + 1);
  chain[0].weights = 1;
  for (int l = 1; l <= k; ++l) chain[index(l)].weights = l;
  return chain;
}

TEST(PeriodicSearch, Theorem4EachKGainsOverTheSmallerOnes) {
  for (int k = 1; k <= 5; ++k) {
    SCOPED_TRACE("k " + std::to_string(k));
    const Chain chain = theorem4(k);
    const double memory = k + 1;
    const PeriodicPattern pattern = thinned(one_forward_one_backward_star(chain, 2), k);
    ASSERT_TRUE(timetable_works(pattern, chain));
    EXPECT_EQ(pattern.period, 2 * (k + 1));
    EXPECT_THAT(pattern_memory(pattern, chain), Each(Le(memory)));
    EXPECT_NEAR(growth(pattern, chain), 2 * (1 + 1.0 / k), 1e-9);
    // No schedule is faster, for any k. (The paper proves this for j <= k.)
    const std::vector<int> limits = stash_limits(chain, memory);
    EXPECT_NEAR(period_bound(chain, limits), 2 * (1 + 1.0 / k), 1e-9);
  }
}

// For j < k, 2 (1 + 1/j) is the best of all orders.
TEST(PeriodicSearch, Theorem4SmallerKDoNotReachIt) {
  for (const int k : {2, 3, 4}) {
    const Chain chain = theorem4(k);
    const std::vector<int> limits = stash_limits(chain, k + 1);
    for (int j = 1; j <= std::min(k + 1, 4); ++j) {
      const PeriodicSearch best = best_pattern(chain, limits, j);
      EXPECT_TRUE(best.optimal);
      EXPECT_NEAR(best.pattern.normalized_period(), 2 * (1 + 1.0 / std::min(j, k)), 1e-9)
          << "k " << k << " j " << j;
      EXPECT_EQ(best.pattern.microbatches, std::min(j, k));
    }
  }
}

/// A schedule of B micro-batches with the given order on each stage: BW of micro-batch i starts when the
/// stage holds counts[i mod k] stashes.
Schedule by_counts(const std::vector<std::vector<int>>& counts, int microbatches) {
  std::vector<std::vector<Job>> rows;
  for (std::size_t s = 0; s < counts.size(); ++s) {
    const int stage = static_cast<int>(s);
    std::vector<Job> row;
    int forward = 0;
    for (int b = 0; b < microbatches; ++b) {
      const int until = std::min(microbatches, b + counts[s][index(b) % counts[s].size()]);
      while (forward < until) row.push_back({stage, forward++, Pass::F});
      row.push_back({stage, b, Pass::BW});
    }
    rows.push_back(std::move(row));
  }
  return in_order("counts", StageGraph::chain(static_cast<int>(counts.size())), microbatches, rows);
}

/// The shortest normalized period of all such schedules within the limits, by simulation.
double simulated_best(const Chain& chain, const std::vector<int>& limits, int k) {
  double best = std::numeric_limits<double>::infinity();
  std::vector<std::vector<int>> counts(chain.size(), std::vector<int>(index(k), 1));
  while (true) {
    const Schedule some = by_counts(counts, 36);
    const Schedule more = by_counts(counts, 48);
    if (check(some).ok() && check(more).ok()) {
      const Costs costs = costs_of(chain);
      best = std::min(best, (simulate(more, costs).makespan - simulate(some, costs).makespan) / 12);
    }
    std::size_t digit = 0;
    const std::size_t digits = chain.size() * index(k);
    for (; digit < digits; ++digit) {
      int& count = counts[digit / index(k)][digit % index(k)];
      if (++count <= limits[digit / index(k)]) break;
      count = 1;
    }
    if (digit == digits) return best;
  }
}

TEST(PeriodicSearch, BestPatternIsTheBestOfAllOrders) {
  std::mt19937 rng(19);
  std::map<int, int> periodic;  // k -> number of cases
  for (int i = 0; i < 24; ++i) {
    const int k = 2 + i % 2;
    const Chain chain = random_integer_chain(rng, 3, 3);
    const std::vector<int> limits = {2, 1 + static_cast<int>(rng() % 2), 1};
    const PeriodicSearch found = best_pattern(chain, limits, k);
    ASSERT_TRUE(found.optimal);
    ASSERT_TRUE(timetable_works(found.pattern, chain));
    const std::vector<int> live = concurrent_activations(found.pattern, chain);
    EXPECT_TRUE(std::ranges::equal(live, limits, std::ranges::less_equal{}));
    double best = simulated_best(chain, limits, 1);
    for (int j = 2; j <= k; ++j) best = std::min(best, simulated_best(chain, limits, j));
    EXPECT_NEAR(found.pattern.normalized_period(), best, 1e-9) << "case " << i;
    EXPECT_NEAR(growth(found.pattern, chain), best, 1e-9);
    EXPECT_GE(found.pattern.normalized_period(), period_bound(chain, limits) - 1e-9);
    ++periodic[found.pattern.microbatches];
  }
  EXPECT_GE(periodic[1], 3);
  EXPECT_GE(periodic[2] + periodic[3], 3);
}

// A chain for which neither 1F1B* nor a thinned pattern is the best.
TEST(PeriodicSearch, SearchFindsMoreThanTheConstructions) {
  std::mt19937 rng(23);
  int better = 0;
  for (int i = 0; i < 100; ++i) {
    const Chain chain = random_chain(rng, 4);
    const std::vector<int> limits = {3, 2, 2, 1};
    const double simple = best_pattern(chain, limits, 3, 0).pattern.normalized_period();
    const double found = best_pattern(chain, limits, 3).pattern.normalized_period();
    EXPECT_LE(found, simple);
    if (found < 0.99 * simple) ++better;
  }
  EXPECT_GE(better, 10);
}

}  // namespace
}  // namespace starpipe::plan
