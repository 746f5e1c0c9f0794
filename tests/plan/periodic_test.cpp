// SPDX-License-Identifier: Apache-2.0
// Source 002: its theorems, each against a way of its own to compute them.
#include "starpipe/plan/periodic.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "starpipe/plan/building_block.hpp"
#include "starpipe/plan/check.hpp"
#include "starpipe/plan/error.hpp"
#include "starpipe/plan/simulate.hpp"

namespace starpipe::plan {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Le;
using ::testing::ThrowsMessage;

using Chain = std::vector<ChainStage>;

std::size_t index(int i) { return static_cast<std::size_t>(i); }

Chain equal_stages(int stages) { return Chain(index(stages)); }

/// U only; a third of it is F.
Chain chain_of(const std::vector<double>& times) {
  Chain chain;
  for (const double time : times) chain.push_back({.forward = time / 3, .backward = time - time / 3});
  return chain;
}

Chain random_integer_chain(std::mt19937& rng, int stages, int longest) {
  Chain chain;
  for (int s = 0; s < stages; ++s) {
    chain.push_back({.forward = 1.0 + static_cast<double>(rng() % index(longest)),
                     .backward = 1.0 + static_cast<double>(rng() % index(longest))});
  }
  return chain;
}

Chain random_chain(std::mt19937& rng, int stages) {
  std::uniform_real_distribution<double> time(0.1, 3);
  Chain chain;
  for (int s = 0; s < stages; ++s) chain.push_back({.forward = time(rng), .backward = time(rng)});
  return chain;
}

double sum(const Chain& chain) {
  return std::accumulate(chain.begin(), chain.end(), 0.0,
                         [](double t, const ChainStage& s) { return t + s.time(); });
}

Costs costs_of(const Chain& chain) {
  Costs costs;
  costs.durations.clear();
  for (const ChainStage& stage : chain) costs.durations.push_back({stage.forward, stage.backward, 0});
  return costs;
}

Timeline run(const PeriodicPattern& pattern, const Chain& chain, int microbatches) {
  const Schedule schedule = unrolled("test", pattern, chain, microbatches);
  EXPECT_EQ(check(schedule).problem, "");
  return simulate(schedule, costs_of(chain));
}

/// What simulate sees of T / k: how the makespan grows, with all that comes before its steady state.
double growth(const PeriodicPattern& pattern, const Chain& chain) {
  const int before = 60 * pattern.microbatches;
  const int more = 12 * pattern.microbatches;
  return (run(pattern, chain, before + more).makespan - run(pattern, chain, before).makespan) / more;
}

/// The repeated pattern, operation by operation, over many periods: what 002 calls valid.
bool timetable_works(const PeriodicPattern& pattern, const Chain& chain) {
  constexpr int periods = 40;
  struct Run {
    int worker;
    double start;
    double end;
  };
  std::map<Job, Run> runs;
  for (int j = 0; j < periods; ++j) {
    for (const auto& op : pattern.operations) {
      const ChainStage& stage = chain[index(op.stage)];
      const double start = j * pattern.period + op.start;
      const Job job{op.stage, j * pattern.microbatches + op.shift, op.pass};
      const Run run{op.worker, start, start + (op.pass == Pass::F ? stage.forward : stage.backward)};
      if (!runs.emplace(job, run).second) return false;
    }
  }
  const auto ended = [&](const Job& job, double by) {
    const auto found = runs.find(job);
    return found == runs.end() || found->second.end <= by + 1e-6;
  };
  const int last = static_cast<int>(chain.size()) - 1;
  for (const auto& [job, run] : runs) {
    const auto [s, b, pass] = job;
    const Job before = pass == Pass::F ? Job{s - 1, b, Pass::F}
                       : s == last     ? Job{s, b, Pass::F}
                                       : Job{s + 1, b, pass};
    if (!ended(before, run.start)) return false;
    for (const auto& [other, at] : runs) {
      if (other == job || at.worker != run.worker) continue;
      if (at.start < run.end - 1e-6 && run.start < at.end - 1e-6) return false;
    }
  }
  // In the middle each micro-batch has everything.
  for (int b = periods / 2 * pattern.microbatches; b < (periods / 2 + 3) * pattern.microbatches; ++b) {
    for (int s = 0; s <= last; ++s) {
      if (!runs.contains({s, b, Pass::F}) || !runs.contains({s, b, Pass::BW})) return false;
    }
  }
  return true;
}

// ---- Brute force: every timetable on whole units of time ----

using Activations = std::vector<int>;  // NCA by stage

/// Calls f(starts) for all integer starts in [0, T) of `count` operations, the first one at 0.
void for_each_starts(int count, int T, const std::function<void(const std::vector<int>&)>& f) {
  std::vector<int> starts(index(count), 0);
  while (true) {
    f(starts);
    std::size_t at = starts.size() - 1;
    while (at > 0 && ++starts[at] == T) starts[at--] = 0;
    if (at == 0) return;
  }
}

/// What each stage holds when F of the stages start at starts[0 .. P) in the period, BW at starts[P .. 2P),
/// and a micro-batch takes the first start of each after what it waits for. Empty when operations overlap.
Activations held(const Chain& chain, int T, const std::vector<int>& starts) {
  const int P = static_cast<int>(chain.size());
  const auto length = [&](int s, bool forward) {
    return static_cast<int>(forward ? chain[index(s)].forward : chain[index(s)].backward);
  };
  for (int s = 0; s < P; ++s) {
    const int gap = ((starts[index(P + s)] - starts[index(s)]) % T + T) % T;  // from F's start to BW's
    if (gap < length(s, true) || T - gap < length(s, false)) return {};
  }
  std::vector<int> forward(index(P));
  Activations live(index(P));
  int time = 0;
  const auto next = [&](int start) { return time + ((start - time) % T + T) % T; };
  for (int s = 0; s < P; ++s) {
    forward[index(s)] = time = next(starts[index(s)]);
    time += length(s, true);
  }
  for (int s = P - 1; s >= 0; --s) {
    time = next(starts[index(P + s)]) + length(s, false);
    live[index(s)] = (time - forward[index(s)] + T - 1) / T;
  }
  return live;
}

/// By stage, the least that any 1-periodic timetable of period T holds.
Activations least_activations(const Chain& chain, int T) {
  Activations least(chain.size(), std::numeric_limits<int>::max());
  for_each_starts(2 * static_cast<int>(chain.size()), T, [&](const std::vector<int>& starts) {
    const Activations live = held(chain, T, starts);
    for (std::size_t s = 0; s < live.size(); ++s) least[s] = std::min(least[s], live[s]);
  });
  return least;
}

// ---- Figures 2 and 3 ----

TEST(Periodic, FigureThreeOfTheSource) {
  const Chain chain = equal_stages(3);
  const PeriodicPattern pattern = one_forward_one_backward_star(chain, 2);
  EXPECT_EQ(pattern_problem(pattern, chain), "");
  EXPECT_THAT(concurrent_activations(pattern, chain), ElementsAre(3, 2, 1)) << "figure 3a";
  const PeriodicPattern two = thinned(pattern, 2);
  EXPECT_EQ(pattern_problem(two, chain), "");
  EXPECT_EQ(two.microbatches, 2);
  EXPECT_EQ(two.period, 6);
  EXPECT_THAT(concurrent_activations(two, chain), ElementsAre(2, 2, 1)) << "figure 3b";
}

TEST(Periodic, ShiftsCountFromTheFirstBackwardPass) {
  for (const int k : {1, 2, 3}) {
    const PeriodicPattern pattern = thinned(one_forward_one_backward_star(equal_stages(4), 3), k);
    double first = pattern.period;
    int shift = -1;
    for (const auto& op : pattern.operations) {
      if (op.stage == 0 && op.pass == Pass::BW && op.start < first)
        std::tie(first, shift) = std::pair(op.start, op.shift);
    }
    EXPECT_EQ(shift, 0);
  }
}

// ---- Patterns: valid or not, memory, unrolled ----

TEST(Periodic, ProblemsAreNamed) {
  const Chain chain = equal_stages(3);
  const PeriodicPattern good = one_forward_one_backward_star(chain, 2);
  const auto problem = [&](auto&& change) {
    PeriodicPattern pattern = good;
    change(pattern);
    const std::string text = pattern_problem(pattern, chain);
    EXPECT_THAT([&] { unrolled("test", pattern, chain, 4); }, ThrowsMessage<InputError>(text));
    EXPECT_THAT([&] { concurrent_activations(pattern, chain); }, ThrowsMessage<InputError>(text));
    return text;
  };
  const auto F1 = [](PeriodicPattern& p) -> PeriodicOperation& {
    return *std::ranges::find_if(p.operations, [](auto& op) { return op.stage == 1 && op.pass == Pass::F; });
  };
  EXPECT_THAT(problem([&](auto& p) { F1(p).shift -= 3; }), HasSubstr("before"));
  EXPECT_THAT(problem([&](auto& p) { F1(p).start = 1.5; }), HasSubstr("worker 1"));
  EXPECT_THAT(problem([&](auto& p) { F1(p).start = 2; }), HasSubstr("not within the period of 2"));
  EXPECT_THAT(problem([&](auto& p) { F1(p).start = -0.5; }), HasSubstr("not within the period"));
  EXPECT_THAT(problem([&](auto& p) { F1(p).worker = 3; }), HasSubstr("stage 1 is on worker"));
  EXPECT_THAT(problem([&](auto& p) { F1(p).stage = 3; }), HasSubstr("stage 3"));
  EXPECT_THAT(problem([&](auto& p) { F1(p).pass = Pass::W; }), HasSubstr("W of stage 1"));
  EXPECT_THAT(problem([&](auto& p) { p.operations.pop_back(); }), HasSubstr("no BW of stage 0"));
  EXPECT_THAT(problem([&](auto& p) { p.operations.push_back(p.operations.front()); }), HasSubstr("the same"));
  EXPECT_THAT(problem([&](auto& p) { p.microbatches = 2; }), HasSubstr("micro-batches"));
  EXPECT_THAT(problem([&](auto& p) { p.period = 0; }), HasSubstr("period of 0"));
}

// Random times and shifts, most of them wrong.
TEST(Periodic, ValidIsWhatATimetableSays) {
  std::mt19937 rng(3);
  std::map<bool, int> verdicts;
  for (int i = 0; i < 4000; ++i) {
    const Chain chain = random_integer_chain(rng, 1 + static_cast<int>(rng() % 3), 2);
    const int k = 1 + static_cast<int>(rng() % 2);
    PeriodicPattern pattern = one_forward_one_backward_star(chain, sum(chain));
    if (k == 2) pattern = thinned(pattern, 2);
    for (int change = 0; change < 2; ++change) {
      PeriodicOperation& op = pattern.operations[rng() % pattern.operations.size()];
      if (rng() % 2 == 0) op.start = std::fmod(op.start + static_cast<double>(rng() % 4), pattern.period);
      if (rng() % 4 == 0) op.shift += k * (static_cast<int>(rng() % 3) - 1);
      if (rng() % 8 == 0) op.shift += 1;
    }
    const bool works = timetable_works(pattern, chain);
    ASSERT_EQ(pattern_problem(pattern, chain).empty(), works) << i << " " << pattern_problem(pattern, chain);
    ++verdicts[works];
  }
  EXPECT_GT(verdicts[true], 200);
  EXPECT_GT(verdicts[false], 200);
}

TEST(Periodic, UnrolledSchedulesGrowByThePeriodAndHoldTheActivations) {
  std::mt19937 rng(5);
  for (int i = 0; i < 60; ++i) {
    const Chain chain = random_chain(rng, 1 + static_cast<int>(rng() % 7));
    const std::vector<int> limits(chain.size(), 1 + static_cast<int>(rng() % 5));
    const double T = least_period(chain, limits);
    for (const int k : {0, 1, 2, 3}) {
      SCOPED_TRACE("case " + std::to_string(i) + " k " + std::to_string(k));
      PeriodicPattern pattern = one_forward_one_backward_star(chain, T);
      if (k > 0) pattern = thinned(pattern, k);
      ASSERT_EQ(pattern_problem(pattern, chain), "");
      const Activations live = concurrent_activations(pattern, chain);
      EXPECT_EQ(run(pattern, chain, 40).peak_activations, live);
      if (k == 0) {
        EXPECT_NEAR(growth(pattern, chain), T, 1e-9 * T);
        EXPECT_THAT(live, Each(Le(limits[0])));
      } else {
        EXPECT_LE(growth(pattern, chain), pattern.normalized_period() * (1 + 1e-9));
        const Activations groups = stage_groups(chain, T);
        for (std::size_t s = 0; s < chain.size(); ++s) EXPECT_EQ(live[s], groups[s] - groups[s] / (k + 1));
      }
    }
  }
}

TEST(Periodic, MemoryIsWeightsAndStashes) {
  Chain chain = equal_stages(3);
  chain[0].weights = 5;
  chain[1] = {.forward = 1, .backward = 1, .weights = 2, .activation = 0.5};
  EXPECT_THAT(pattern_memory(one_forward_one_backward_star(chain, 2), chain), ElementsAre(8, 3, 1));
  EXPECT_THAT(stash_limits(chain, 8), ElementsAre(3, 12, 8));
  EXPECT_THAT([&] { stash_limits(chain, 5.5); },
              ThrowsMessage<InputError>(
                  "stage 0 needs 6 for its weights and one stash, more than the memory of 5.5"));
}

// ---- Section 5.1: 1F1B* ----

// Theorem 3: no 1-periodic pattern of the same period holds less on any stage.
TEST(Periodic, Theorem3OneForwardOneBackwardStarHoldsTheLeast) {
  std::mt19937 rng(11);
  int compared = 0;
  for (const auto& [stages, longest, most, cases] : {std::tuple{2, 3, 12, 25}, {3, 2, 8, 12}, {4, 1, 6, 1}}) {
    for (int i = 0; i < cases; ++i) {
      const Chain chain = random_integer_chain(rng, stages, longest);
      const double least = std::ranges::max_element(chain, {}, &ChainStage::time)->time();
      for (int T = static_cast<int>(least); T <= std::min<double>(sum(chain), most); ++T) {
        const PeriodicPattern pattern = one_forward_one_backward_star(chain, T);
        ASSERT_EQ(pattern_problem(pattern, chain), "");
        EXPECT_EQ(concurrent_activations(pattern, chain), least_activations(chain, T))
            << "T " << T << " case " << i;
        EXPECT_EQ(concurrent_activations(pattern, chain), stage_groups(chain, T));
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, 100);
}

TEST(Periodic, OneStageAGroupIs1F1B) {
  for (int P = 1; P <= 8; ++P) {
    const Chain chain(index(P), ChainStage{.forward = 1, .backward = 2});
    const Activations live = concurrent_activations(one_forward_one_backward_star(chain, 3), chain);
    for (int s = 0; s < P; ++s) EXPECT_EQ(live[index(s)], P - s);
  }
}

TEST(Periodic, LeastPeriodIsTheSmallestCandidate) {
  std::mt19937 rng(13);
  for (int i = 0; i < 500; ++i) {
    const Chain chain = random_chain(rng, 1 + static_cast<int>(rng() % 9));
    std::vector<int> limits;
    for (std::size_t s = 0; s < chain.size(); ++s) limits.push_back(1 + static_cast<int>(rng() % 4));
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t last = 0; last < chain.size(); ++last) {
      double T = 0;
      for (std::size_t first = last + 1; first-- > 0;) {
        T += chain[first].time();
        if (T < std::ranges::max_element(chain, {}, &ChainStage::time)->time()) continue;
        if (std::ranges::equal(stage_groups(chain, T), limits, std::ranges::less_equal{}))
          least = std::min(least, T);
      }
    }
    EXPECT_EQ(least_period(chain, limits), least) << "case " << i;
  }
}

// The same against all timetables, memory and all.
TEST(Periodic, NoTimetableWithinTheMemoryHasAShorterPeriod) {
  std::mt19937 rng(17);
  for (int i = 0; i < 20; ++i) {
    Chain chain = random_integer_chain(rng, 3, 2);
    for (ChainStage& stage : chain) {
      stage.weights = static_cast<double>(rng() % 3);
      stage.activation = 1 + static_cast<double>(rng() % 2);
    }
    const double memory = 4 + static_cast<double>(rng() % 3);
    const int T = static_cast<int>(least_period(chain, stash_limits(chain, memory)));
    EXPECT_THAT(pattern_memory(one_forward_one_backward_star(chain, T), chain), Each(Le(memory)));
    bool shorter = false;
    for_each_starts(6, T - 1, [&](const std::vector<int>& starts) {
      const Activations live = held(chain, T - 1, starts);
      bool fits = !live.empty();
      for (std::size_t s = 0; s < live.size(); ++s) {
        fits = fits && chain[s].weights + live[s] * chain[s].activation <= memory;
      }
      shorter = shorter || fits;
    });
    EXPECT_FALSE(shorter) << "case " << i;
  }
}

// ---- Section 5.2: k-periodic patterns ----

/// The instance of theorem 4, for k.
Chain theorem4(int k) {
  Chain chain = equal_stages(k + 1);
  chain[0].weights = 1;
  for (int l = 1; l <= k; ++l) chain[index(l)].weights = l;
  return chain;
}

TEST(Periodic, Theorem4EachKGainsOverTheSmallerOnes) {
  for (int k = 1; k <= 5; ++k) {
    SCOPED_TRACE("k " + std::to_string(k));
    const Chain chain = theorem4(k);
    const double memory = k + 1;
    const PeriodicPattern pattern = thinned(one_forward_one_backward_star(chain, 2), k);
    ASSERT_EQ(pattern_problem(pattern, chain), "");
    EXPECT_EQ(pattern.period, 2 * (k + 1));
    EXPECT_THAT(pattern_memory(pattern, chain), Each(Le(memory)));
    EXPECT_NEAR(growth(pattern, chain), 2 * (1 + 1.0 / k), 1e-9);
    // No schedule at all is faster, whatever its k: the paper proves it for j <= k.
    const std::vector<int> limits = stash_limits(chain, memory);
    EXPECT_NEAR(period_bound(chain, limits), 2 * (1 + 1.0 / k), 1e-9);
  }
}

// 2 (1 + 1/j) is the best of j < k, by all orders.
TEST(Periodic, Theorem4SmallerKDoNotReachIt) {
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

/// Every order of k micro-batches on each stage, in which BW of micro-batch i starts with counts[i mod k]
/// stashes in hand; as a schedule of B micro-batches.
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

/// The shortest normalized period that simulate sees of all those within the limits.
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

TEST(Periodic, BestPatternIsTheBestOfAllOrders) {
  std::mt19937 rng(19);
  std::map<int, int> periodic;  // cases by k
  for (int i = 0; i < 24; ++i) {
    const int k = 2 + i % 2;
    const Chain chain = random_integer_chain(rng, 3, 3);
    const std::vector<int> limits = {2, 1 + static_cast<int>(rng() % 2), 1};
    const PeriodicSearch found = best_pattern(chain, limits, k);
    ASSERT_TRUE(found.optimal);
    ASSERT_EQ(pattern_problem(found.pattern, chain), "");
    const Activations live = concurrent_activations(found.pattern, chain);
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

// What neither 1F1B* nor a thinned pattern reaches.
TEST(Periodic, SearchFindsMoreThanTheConstructions) {
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

// ---- Section 6: contiguous and general allocations ----

/// The least longest load of `workers` contiguous parts whose weights fit, by dynamic programming.
double contiguous_period(const Chain& chain, int workers, double memory) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  std::vector<double> best(chain.size() + 1, infinity);  // of the first layers
  best[0] = 0;
  for (int w = 0; w < workers; ++w) {
    std::vector<double> next = best;
    for (std::size_t first = 0; first < chain.size(); ++first) {
      double time = 0;
      double weights = 0;
      for (std::size_t last = first; last < chain.size(); ++last) {
        time += chain[last].time();
        weights += chain[last].weights;
        if (weights > memory) break;
        next[last + 1] = std::min(next[last + 1], std::max(best[first], time));
      }
    }
    best = std::move(next);
  }
  return best.back();
}

/// The least longest load of any allocation.
double general_period(const Chain& chain, int workers) {
  double best = std::numeric_limits<double>::infinity();
  std::vector<double> load(index(workers), 0);
  const std::function<void(std::size_t)> place = [&](std::size_t s) {
    if (s == chain.size()) {
      best = std::min(best, std::ranges::max(load));
      return;
    }
    for (double& time : load) {
      time += chain[s].time();
      place(s + 1);
      time -= chain[s].time();
    }
  };
  place(0);
  return best;
}

/// The allocation as a running schedule: its period, by simulate.
double measured_period(const Chain& chain, const std::vector<int>& workers) {
  const PeriodicPattern pattern = busiest_worker_pattern(chain, workers);
  EXPECT_EQ(pattern_problem(pattern, chain), "");
  const double period = growth(pattern, chain);
  EXPECT_NEAR(period, pattern.period, 1e-9 * period);
  return period;
}

TEST(Periodic, AnyAllocationRunsAtThePeriodOfItsBusiestWorker) {
  std::mt19937 rng(29);
  for (int i = 0; i < 100; ++i) {
    const Chain chain = random_chain(rng, 1 + static_cast<int>(rng() % 9));
    std::vector<int> workers;
    std::vector<double> load(4, 0);
    for (const ChainStage& stage : chain) {
      workers.push_back(static_cast<int>(rng() % 4));
      load[index(workers.back())] += stage.time();
    }
    EXPECT_NEAR(measured_period(chain, workers), std::ranges::max(load), 1e-9) << "case " << i;
  }
}

// Section 6.1's first example: costs 1, 2, 1 on two workers.
TEST(Periodic, ContiguousPartsMayTakeHalfAsMuchAgain) {
  const Chain chain = chain_of({1, 2, 1});
  EXPECT_NEAR(contiguous_period(chain, 2, 1), 3, 1e-12);
  EXPECT_NEAR(measured_period(chain, {0, 0, 1}), 3, 1e-9);
  EXPECT_NEAR(measured_period(chain, {0, 1, 0}), 2, 1e-9);
}

TEST(Periodic, Theorem5ContiguousIsWithinTwiceTheBest) {
  std::mt19937 rng(31);
  double worst = 1;
  for (int i = 0; i < 300; ++i) {
    const int workers = 2 + static_cast<int>(rng() % 2);
    const Chain chain = random_chain(rng, 2 + static_cast<int>(rng() % 6));
    const double ratio = contiguous_period(chain, workers, 1) / general_period(chain, workers);
    EXPECT_LE(ratio, 2);
    worst = std::max(worst, ratio);
  }
  EXPECT_GT(worst, 1.3);
}

/// The chain C_k of theorem 5 with times in units of epsilon = 1 / (2k + 1), and its allocation of period k.
struct Theorem5 {
  Chain chain;
  std::vector<int> workers;

  explicit Theorem5(int k) {
    const int unit = 2 * k + 1;
    std::vector<double> times;
    int large = 0;       // the next worker for a layer of cost k
    int small = k + 1;   // for one of cost k - 1
    int shared = k + 2;  // with epsilons on them
    int fill = 0;        // epsilons on it
    const auto add = [&](int time, int worker) {
      times.push_back(time);
      workers.push_back(worker);
    };
    const auto epsilon = [&] {
      if (fill == unit) {
        ++shared;
        fill = 0;
      }
      ++fill;
      add(1, shared);
    };
    for (int part = 0; part < k; ++part) {
      add(k * unit, large++);
      epsilon();
      add((k - 1) * unit, small++);
      epsilon();
    }
    add(k * unit, large++);
    for (int i = 0; i < (k - 2) * unit + 1; ++i) epsilon();
    add(unit, k + 1);  // beside the first layer of cost k - 1
    chain = chain_of(times);
  }
};

TEST(Periodic, Theorem5SomeChainsReachAlmostTwice) {
  for (int k = 2; k <= 6; ++k) {
    const Theorem5 example(k);
    const int unit = 2 * k + 1;
    const int workers = 2 * k + 1;
    EXPECT_NEAR(busiest_worker_pattern(example.chain, example.workers).period, k * unit, 1e-9);
    EXPECT_NEAR(sum(example.chain), workers * k * unit, 1e-9) << "no worker idles: nothing is shorter";
    // The paper: more than 2k - 1, so the ratio is above 2 - 1/k. It is 2k - 1 + epsilon.
    EXPECT_NEAR(contiguous_period(example.chain, workers, 1), (2 * k - 1) * unit + 1, 1e-9);
  }
  const Theorem5 example(3);
  EXPECT_NEAR(measured_period(example.chain, example.workers), 3 * 7, 1e-6);
}

TEST(Periodic, Lemma2SomeChainsFitInNoContiguousParts) {
  Chain chain = equal_stages(3);
  for (ChainStage& layer : chain) layer.activation = 0;
  for (const auto& [s, weights] : {std::pair{0, 1}, {1, 2}, {2, 1}}) chain[index(s)].weights = weights;
  EXPECT_EQ(contiguous_period(chain, 2, 2), std::numeric_limits<double>::infinity());
  EXPECT_LT(contiguous_period(chain, 2, 3), 5) << "they need 3";
  const PeriodicPattern pattern = busiest_worker_pattern(chain, std::vector{0, 1, 0});
  EXPECT_THAT(pattern_memory(pattern, chain), Each(Le(2)));
  EXPECT_NEAR(growth(pattern, chain), 4, 1e-9);
}

// Its text says that a worker takes k + 1, and then that T* = k. The costs that it gives, 1 and k - 1, make
// k.
TEST(Periodic, Theorem6TheGeneralPeriodIsK) {
  for (int k = 2; k <= 6; ++k) {
    std::vector<double> times(index(k), 1);
    times.push_back(k);
    times.insert(times.end(), index(k), k - 1);
    Chain chain = chain_of(times);
    // The text asks for M >= k; with M = 2 the first two layers would fit on one worker.
    const double M = std::max(k, 3);
    for (int l = 0; l <= 2 * k; ++l) {
      chain[index(l)].weights = l < k ? M - 1 : l == k ? M : 1;
      chain[index(l)].activation = 0;
    }
    std::vector<int> workers;
    for (int l = 0; l <= 2 * k; ++l) workers.push_back(l <= k ? l : l - k - 1);
    const PeriodicPattern pattern = busiest_worker_pattern(chain, workers);
    EXPECT_THAT(pattern_memory(pattern, chain), Each(Le(M)));
    EXPECT_NEAR(pattern.period, k, 1e-12);
    EXPECT_NEAR(growth(pattern, chain), k, 1e-9);
    EXPECT_EQ(times[index(k)], k) << "one layer alone takes k: nothing is shorter";
    EXPECT_NEAR(contiguous_period(chain, k + 2, M), k * (k - 1), 1e-9) << "k - 1 times as long";
  }
}

// ---- Bad input ----

TEST(Periodic, RefusesWhatHasNoPeriod) {
  const Chain chain = chain_of({1, 4, 2});
  EXPECT_THAT([&] { one_forward_one_backward_star(chain, 3); },
              ThrowsMessage<InputError>("stage 1 takes 4, more than the period of 3"));
  EXPECT_THAT([] { stage_groups({}, 1); }, ThrowsMessage<InputError>(HasSubstr("at least one stage")));
  EXPECT_THAT([] { stage_groups(Chain{{.forward = 0, .backward = 0}}, 1); },
              ThrowsMessage<InputError>(HasSubstr("no time")));
  EXPECT_THAT([] { stage_groups(Chain{{.forward = 1, .backward = -2}}, 1); },
              ThrowsMessage<InputError>(HasSubstr("stage 0: -2")));
  EXPECT_THAT(
      [&] {
        least_period(chain, std::vector{1, 1});
      },
      ThrowsMessage<InputError>("2 limits for 3 stages"));
  EXPECT_THAT(
      [&] {
        least_period(chain, std::vector{1, 0, 1});
      },
      ThrowsMessage<InputError>("stage 1: a limit of 0 stashes"));
  EXPECT_THAT(
      [&] {
        best_pattern(chain, std::vector{1, 1, 1}, 0);
      },
      ThrowsMessage<InputError>(HasSubstr("up to 0")));
  EXPECT_THAT([&] { thinned(one_forward_one_backward_star(chain, 4), 0); },
              ThrowsMessage<InputError>(HasSubstr("1-th")));
  EXPECT_THAT(
      [&] {
        busiest_worker_pattern(chain, std::vector{0, -1, 0});
      },
      ThrowsMessage<InputError>("stage 1 is on worker -1"));
  EXPECT_THAT([&] { unrolled("test", one_forward_one_backward_star(chain, 4), chain, 0); },
              ThrowsMessage<InputError>("0 micro-batches"));
}

TEST(Periodic, TakesStagesWithoutTime) {
  Chain chain = chain_of({0, 2, 0, 1, 0});
  const PeriodicPattern pattern = one_forward_one_backward_star(chain, 2);
  EXPECT_EQ(pattern_problem(pattern, chain), "");
  EXPECT_NEAR(growth(pattern, chain), 2, 1e-9);
  // A stash that lives for no time is none to simulate.
  EXPECT_THAT(run(pattern, chain, 9).peak_activations, ElementsAre(2, 2, 1, 1, 0));
  EXPECT_TRUE(std::ranges::equal(concurrent_activations(pattern, chain), stage_groups(chain, 2),
                                 std::ranges::less_equal{}));
  EXPECT_NEAR(growth(busiest_worker_pattern(chain, std::vector{0, 1, 0, 1, 0}), chain), 3, 1e-9);
}

}  // namespace
}  // namespace starpipe::plan
