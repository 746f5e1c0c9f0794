// SPDX-License-Identifier: Apache-2.0
// The bubble fractions and peaks of Separability, and relations that hold for every P and m.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "starpipe/base/index.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/simulate/simulate.hpp"

namespace starpipe::plan {
namespace {

constexpr double max_error = 1e-9;

Timeline run(const std::string& name, int P, int m, Durations durations) {
  Costs costs;
  costs.durations = {durations};
  return simulate(make_schedule(name, {.workers = P, .microbatches = m}), costs);
}

/// Forward and backward passes of equal length, as Separability has them.
constexpr Durations equal = {1, 1, 0};
const std::vector<Durations> several = {{1, 1, 0},      {1, 2, 0},     {1, 1, 1},
                                        {3, 0.5, 0.25}, {0.125, 2, 4}, {10, 20, 0}};
const std::vector<std::string> pipelines = {"gpipe", "1f1b", "eager-1f1b"};

double percent(double fraction, int digits) {
  const double scale = std::pow(10, digits);
  return std::round(fraction * 100 * scale) / scale;
}

struct Printed {
  int P;
  int m;
  double percent;
  int digits;
};

TEST(Bubbles, AreThoseThatSource001Prints) {
  for (const auto& [P, m, printed, digits] : {Printed{4, 1, 75, 0},
                                              {4, 4, 43, 0},
                                              {4, 16, 16, 0},
                                              {4, 32, 8.6, 1},
                                              {4, 64, 4.5, 1},
                                              {8, 64, 9.9, 1},
                                              {4, 8, 27, 0},
                                              {8, 48, 12.7, 1},
                                              {8, 32, 17.9, 1}}) {
    for (const auto& name : pipelines) {
      EXPECT_DOUBLE_EQ(percent(run(name, P, m, equal).bubble_fraction, digits), printed)
          << name << " P=" << P << " m=" << m;
    }
  }
}

/// Exercise 2 of Separability: 4 stages, 16 micro-batches, 32 MB each.
TEST(Bubbles, MemoryExerciseOfSource001) {
  constexpr std::uint64_t megabyte = 1'000'000;
  Costs costs;
  costs.sizes = {{.stash = 32 * megabyte}};
  const ScheduleRequest request{.workers = 4, .microbatches = 16};
  EXPECT_EQ(simulate(make_schedule("gpipe", request), costs).peak_stash_bytes[0], 512 * megabyte);
  EXPECT_EQ(simulate(make_schedule("1f1b", request), costs).peak_stash_bytes[0], 128 * megabyte);
}

/// Exercise 6 of Separability: 8 GPUs, forward 10 ms, backward 20 ms, 64 micro-batches.
TEST(Bubbles, ThroughputExerciseOfSource001) {
  for (const auto& name : pipelines) {
    const Timeline timeline = run(name, 8, 64, {0.010, 0.020, 0});
    EXPECT_NEAR(timeline.makespan, 2.13, max_error) << name;
    EXPECT_DOUBLE_EQ(percent(1 - timeline.bubble_fraction, 1), 90.1) << name;
    EXPECT_DOUBLE_EQ(std::round(64 / timeline.makespan * 10) / 10, 30.0) << name;
  }
}

TEST(Bubbles, FollowTheFormulaForEveryShapeAndSplit) {
  for (int P = 1; P <= 9; ++P) {
    for (int m = 1; m <= 24; ++m) {
      for (const Durations& d : several) {
        for (const auto& name : pipelines) {
          const Timeline timeline = run(name, P, m, d);
          EXPECT_NEAR(timeline.bubble_fraction, (P - 1.0) / (m + P - 1), max_error)
              << name << " P=" << P << " m=" << m << " F=" << d.F << " B=" << d.B << " W=" << d.W;
          EXPECT_NEAR(timeline.makespan, (m + P - 1) * (d.F + d.B + d.W), max_error);
          for (const double busy : timeline.busy) EXPECT_NEAR(busy, m * (d.F + d.B + d.W), max_error);
        }
        const Timeline naive = run("naive", P, m, d);
        EXPECT_NEAR(naive.bubble_fraction, 1 - 1.0 / P, max_error) << P << " " << m;
        EXPECT_NEAR(naive.makespan, P * m * (d.F + d.B + d.W), max_error);
      }
    }
  }
}

TEST(Bubbles, PeakStashesOfEachDevice) {
  for (int P = 1; P <= 9; ++P) {
    for (int m = 1; m <= 24; ++m) {
      for (const Durations& d : several) {
        const Timeline gpipe = run("gpipe", P, m, d);
        const Timeline one = run("1f1b", P, m, d);
        const Timeline eager = run("eager-1f1b", P, m, d);
        const Timeline naive = run("naive", P, m, d);
        for (int i = 0; i < P; ++i) {
          const auto w = index(i);
          EXPECT_EQ(gpipe.peak_stashes[w], m);
          EXPECT_EQ(one.peak_stashes[w], std::min(m, P - i)) << "P=" << P << " m=" << m << " device " << i;
          EXPECT_EQ(eager.peak_stashes[w], std::min(m, 2 * (P - i) - 1))
              << "P=" << P << " m=" << m << " device " << i;
          EXPECT_EQ(naive.peak_stashes[w], 1);
        }
      }
    }
  }
}

/// Separability: at least 4 P micro-batches for a bubble below 20 %.
TEST(Bubbles, RuleOfThumb) {
  for (int P = 1; P <= 16; ++P) EXPECT_LT(run("1f1b", P, 4 * P, equal).bubble_fraction, 0.2);
}

/// Eager 1F1B hides transfers of up to half a round in the steady state.
TEST(Bubbles, EagerHidesTransfersThat1F1BDoesNot) {
  Costs costs;
  costs.durations = {equal};
  costs.links = Link{.alpha = 1};
  const ScheduleRequest request{.workers = 6, .microbatches = 64};
  const double eager = simulate(make_schedule("eager-1f1b", request), costs).makespan;
  const double plain = simulate(make_schedule("1f1b", request), costs).makespan;
  EXPECT_NEAR(eager, 2 * 64 + 2 * 5 * 2, max_error) << "work, and twice through 5 stages and 5 transfers";
  EXPECT_GT(plain, 1.3 * eager);
}

/// A slow stage sets the pace: Separability, load imbalance.
TEST(Bubbles, SlowestStageSetsThePace) {
  for (const auto& name : pipelines) {
    for (int slow = 0; slow < 4; ++slow) {
      Costs costs;
      costs.durations.assign(4, {1, 1, 0});
      costs.durations[index(slow)] = {2, 2, 0};
      const int m = 32;
      const Timeline timeline = simulate(make_schedule(name, {.workers = 4, .microbatches = m}), costs);
      // GPipe fills and drains all other stages; 1F1B only those before the slow one.
      const double others = name == "gpipe" ? 3 : slow;
      EXPECT_NEAR(timeline.makespan, 4 * m + 2 * others, max_error) << name << " slow stage " << slow;
    }
  }
}

/// The two bubble figures differ: by device span the fill and drain of the others do not count.
TEST(Bubbles, DeviceSpanOf1F1B) {
  const Timeline timeline = run("1f1b", 4, 8, equal);
  EXPECT_NEAR(timeline.makespan, 22, max_error);
  EXPECT_NEAR(timeline.device_span, 22, max_error) << "device 0 starts first and ends last";
  EXPECT_NEAR(timeline.device_bubble_fraction, 6.0 / 22, max_error);
}

/// Separability: 4 workers, 8 micro-batches, F = B = W = 1.
TEST(Bubbles, ExampleOfTheManual) {
  const Timeline timeline = run("1f1b", 4, 8, {1, 1, 1});
  EXPECT_NEAR(timeline.makespan, 33, max_error);
  EXPECT_NEAR(timeline.bubble_fraction, 0.2727, 5e-5);
  EXPECT_THAT(timeline.peak_stashes, ::testing::ElementsAre(4, 3, 2, 1));
}

}  // namespace
}  // namespace starpipe::plan
