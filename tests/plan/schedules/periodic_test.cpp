// SPDX-License-Identifier: Apache-2.0
// Pipelined Model Parallelism, sections 3 and 5.1: patterns, their memory, and 1F1B*, against enumeration of
// timetables.
#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/schedules/periodic_chains.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/plan/schedule/schedule.hpp"

namespace starpipe::plan {
namespace {

using testing::Chain;
using testing::chain_of;
using ::testing::Each;
using ::testing::ElementsAre;
using testing::equal_stages;
using testing::growth;
using ::testing::HasSubstr;
using ::testing::Le;
using testing::random_chain;
using testing::random_integer_chain;
using testing::run;
using testing::sum;
using ::testing::ThrowsMessage;
using testing::timetable_works;

// ---- Brute force: every timetable on whole units of time ----

using Activations = std::vector<int>;  // [stage], NCA

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

/// NCA of each stage for a timetable: F of the stages starts at starts[0 .. P) in the period, BW at starts[P
/// .. 2P). A micro-batch takes the first start of each operation after its inputs are there. Empty when
/// operations overlap.
Activations held(const Chain& chain, int T, const std::vector<int>& starts) {
  const int P = static_cast<int>(chain.size());
  const auto length = [&](int s, bool forward) {
    return static_cast<int>(forward ? chain[index(s)].forward : chain[index(s)].backward);
  };
  for (int s = 0; s < P; ++s) {
    const int gap = ((starts[index(P + s)] - starts[index(s)]) % T + T) % T;  // from F's start to BW's start
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

/// The smallest NCA of each stage over all 1-periodic timetables of period T.
Activations min_activations(const Chain& chain, int T) {
  Activations min(chain.size(), std::numeric_limits<int>::max());
  for_each_starts(2 * static_cast<int>(chain.size()), T, [&](const std::vector<int>& starts) {
    const Activations live = held(chain, T, starts);
    for (std::size_t s = 0; s < live.size(); ++s) min[s] = std::min(min[s], live[s]);
  });
  return min;
}

// ---- Figures 2 and 3 ----

TEST(Periodic, FigureThreeOfTheSource) {
  const Chain chain = equal_stages(3);
  const PeriodicPattern pattern = one_forward_one_backward_star(chain, 2);
  EXPECT_TRUE(timetable_works(pattern, chain));
  EXPECT_THAT(concurrent_activations(pattern, chain), ElementsAre(3, 2, 1)) << "figure 3a";
  const PeriodicPattern two = thinned(pattern, 2);
  EXPECT_TRUE(timetable_works(two, chain));
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

// ---- Patterns: memory, unrolled ----

TEST(Periodic, UnrolledSchedulesGrowByThePeriodAndHoldTheActivations) {
  std::mt19937 rng(5);
  for (int i = 0; i < 60; ++i) {
    const Chain chain = random_chain(rng, 1 + static_cast<int>(rng() % 7));
    const std::vector<int> limits(chain.size(), 1 + static_cast<int>(rng() % 5));
    const double T = min_period(chain, limits);
    for (const int k : {0, 1, 2, 3}) {
      SCOPED_TRACE("case " + std::to_string(i) + " k " + std::to_string(k));
      PeriodicPattern pattern = one_forward_one_backward_star(chain, T);
      if (k > 0) pattern = thinned(pattern, k);
      ASSERT_TRUE(timetable_works(pattern, chain));
      const Activations live = concurrent_activations(pattern, chain);
      EXPECT_EQ(run(pattern, chain, 40).peak_stashes, live);
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

// Theorem 3: no 1-periodic pattern of the same period has a smaller NCA on any stage.
TEST(Periodic, Theorem3OneForwardOneBackwardStarHoldsTheLeast) {
  std::mt19937 rng(11);
  int compared = 0;
  for (const auto& [stages, longest, max, cases] : {std::tuple{2, 3, 12, 25}, {3, 2, 8, 12}, {4, 1, 6, 1}}) {
    for (int i = 0; i < cases; ++i) {
      const Chain chain = random_integer_chain(rng, stages, longest);
      const double min = std::ranges::max_element(chain, {}, &ChainStage::time)->time();
      for (int T = static_cast<int>(min); T <= std::min<double>(sum(chain), max); ++T) {
        const PeriodicPattern pattern = one_forward_one_backward_star(chain, T);
        ASSERT_TRUE(timetable_works(pattern, chain));
        EXPECT_EQ(concurrent_activations(pattern, chain), min_activations(chain, T))
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
    double min = std::numeric_limits<double>::infinity();
    for (std::size_t last = 0; last < chain.size(); ++last) {
      double T = 0;
      for (std::size_t first = last + 1; first-- > 0;) {
        T += chain[first].time();
        if (T < std::ranges::max_element(chain, {}, &ChainStage::time)->time()) continue;
        if (std::ranges::equal(stage_groups(chain, T), limits, std::ranges::less_equal{}))
          min = std::min(min, T);
      }
    }
    EXPECT_EQ(min_period(chain, limits), min) << "case " << i;
  }
}

// The least period within a memory limit, against all timetables.
TEST(Periodic, NoTimetableWithinTheMemoryHasAShorterPeriod) {
  std::mt19937 rng(17);
  for (int i = 0; i < 20; ++i) {
    Chain chain = random_integer_chain(rng, 3, 2);
    for (ChainStage& stage : chain) {
      stage.weights = static_cast<double>(rng() % 3);
      stage.activation = 1 + static_cast<double>(rng() % 2);
    }
    const double memory = 4 + static_cast<double>(rng() % 3);
    const int T = static_cast<int>(min_period(chain, stash_limits(chain, memory)));
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

// ---- Bad input ----

TEST(Periodic, RefusesWhatHasNoPeriod) {
  const Chain chain = chain_of({1, 4, 2});
  EXPECT_THAT([&] { one_forward_one_backward_star(chain, 3); },
              ThrowsMessage<InputError>("stage 1 takes 4, more than the period of 3"));
  EXPECT_THAT([&] { one_forward_one_backward_star(chain, std::numeric_limits<double>::infinity()); },
              ThrowsMessage<InputError>("the period must be positive and finite, not inf"));
  EXPECT_THAT(
      [&] {
        busiest_worker_pattern(chain, std::vector{0, 1});
      },
      ThrowsMessage<InputError>("there are workers for 2 stages, but the chain has 3"));
  EXPECT_THAT([] { stage_groups({}, 1); }, ThrowsMessage<InputError>(HasSubstr("at least one stage")));
  EXPECT_THAT([] { stage_groups(Chain{{.forward = 0, .backward = 0}}, 1); },
              ThrowsMessage<InputError>(HasSubstr("no time")));
  EXPECT_THAT([] { stage_groups(Chain{{.forward = 1, .backward = -2}}, 1); },
              ThrowsMessage<InputError>(HasSubstr("stage 0: -2")));
  EXPECT_THAT(
      [&] {
        min_period(chain, std::vector{1, 1});
      },
      ThrowsMessage<InputError>("there are 2 limits for 3 stages"));
  EXPECT_THAT(
      [&] {
        min_period(chain, std::vector{1, 0, 1});
      },
      ThrowsMessage<InputError>("stage 1: a limit of 0 stashes, need at least 1"));
}

TEST(Periodic, TakesStagesWithoutTime) {
  Chain chain = chain_of({0, 2, 0, 1, 0});
  const PeriodicPattern pattern = one_forward_one_backward_star(chain, 2);
  EXPECT_TRUE(timetable_works(pattern, chain));
  EXPECT_NEAR(growth(pattern, chain), 2, 1e-9);
  // The last stage holds a stash, although for no time.
  EXPECT_THAT(run(pattern, chain, 9).peak_stashes, ElementsAre(2, 2, 1, 1, 1));
  EXPECT_TRUE(std::ranges::equal(concurrent_activations(pattern, chain), stage_groups(chain, 2),
                                 std::ranges::less_equal{}));
  EXPECT_NEAR(growth(busiest_worker_pattern(chain, std::vector{0, 1, 0, 1, 0}), chain), 3, 1e-9);
}

}  // namespace
}  // namespace starpipe::plan
