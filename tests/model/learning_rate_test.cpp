// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include <gtest/gtest.h>

#include "starpipe/model/optimizer.hpp"

namespace starpipe::model {
namespace {

constexpr double peak = 6e-4;

TEST(LearningRate, IsConstantByDefault) {
  for (const int step : {0, 1, 1000}) EXPECT_EQ(learning_rate({}, peak, step), peak);
}

// The first step has a rate above 0, and step `warmup` is the first at the peak.
TEST(LearningRate, RisesInALineDuringTheWarmUp) {
  for (const auto kind : learning_rate_kinds) {
    const LearningRateSchedule schedule = {std::string(kind), 4, 1e-5, 100};
    for (int step = 0; step <= 4; ++step)
      EXPECT_DOUBLE_EQ(learning_rate(schedule, peak, step), peak * (step + 1) / 5) << kind << " " << step;
  }
}

TEST(LearningRate, FallsInALine) {
  const LearningRateSchedule schedule = {"linear", 10, 1e-4, 110};
  EXPECT_DOUBLE_EQ(learning_rate(schedule, peak, 60), (peak + 1e-4) / 2);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, peak, 109), 1e-4 + (peak - 1e-4) / 100);
  for (const int step : {110, 111, 5000}) EXPECT_EQ(learning_rate(schedule, peak, step), 1e-4);
  EXPECT_DOUBLE_EQ(learning_rate({"linear", 0, 0, 10}, peak, 0), peak);
  EXPECT_EQ(learning_rate({"linear", 0, 0, 10}, peak, 10), 0);
}

// cos(pi / 3) = 1/2, cos(pi / 2) = 0, cos(2 pi / 3) = -1/2.
TEST(LearningRate, FallsAlongACosine) {
  const LearningRateSchedule schedule = {"cosine", 100, 6e-5, 700};
  EXPECT_DOUBLE_EQ(learning_rate(schedule, peak, 100), peak);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, peak, 300), 6e-5 + 0.75 * (peak - 6e-5));
  EXPECT_DOUBLE_EQ(learning_rate(schedule, peak, 400), 6e-5 + 0.5 * (peak - 6e-5));
  EXPECT_DOUBLE_EQ(learning_rate(schedule, peak, 500), 6e-5 + 0.25 * (peak - 6e-5));
  for (const int step : {700, 10'000}) EXPECT_EQ(learning_rate(schedule, peak, step), 6e-5);
}

TEST(LearningRate, FallsAsTheInverseSquareRoot) {
  const LearningRateSchedule schedule = {"inverse_sqrt", 99, 1e-4, {}};
  EXPECT_DOUBLE_EQ(learning_rate(schedule, peak, 99), peak);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, peak, 399), peak / 2);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, peak, 2499), peak / 5);
  EXPECT_EQ(learning_rate(schedule, peak, 9999), 1e-4) << "a tenth of the peak, below the floor";
  EXPECT_DOUBLE_EQ(learning_rate({"inverse_sqrt", 0, 0, {}}, peak, 3), peak / 2);
}

// A run that ends in its warm-up: the schedule ends there, too.
TEST(LearningRate, ASchedulesEndWithinTheWarmUpIsTheFloor) {
  for (const char* kind : {"linear", "cosine"}) {
    EXPECT_DOUBLE_EQ(learning_rate({kind, 10, 1e-5, 3}, peak, 2), peak * 3 / 11);
    EXPECT_DOUBLE_EQ(learning_rate({kind, 10, 1e-5, 3}, peak, 9), peak * 10 / 11);
    EXPECT_EQ(learning_rate({kind, 10, 1e-5, 3}, peak, 10), 1e-5);
    EXPECT_EQ(learning_rate({kind, 10, 1e-5, 10}, peak, 10), 1e-5);
  }
}

// Its get_lr, with learning_rate 6e-4, min_lr 6e-5, warmup_iters 2000 and lr_decay_iters 600000.
TEST(LearningRate, IsThatOfNanoGpt) {
  const LearningRateSchedule schedule = {"cosine", 2000, 6e-5, 600'000};
  const auto expected = [](double step) {
    return step < 2000
               ? 6e-4 * (step + 1) / 2001
               : 6e-5 + 0.5 * (1 + std::cos(3.14159265358979323846 * (step - 2000) / 598'000)) * 5.4e-4;
  };
  for (const int step : {0, 1, 1999, 2000, 2001, 77'777, 300'000, 599'999})
    EXPECT_NEAR(learning_rate(schedule, 6e-4, step), expected(step), 1e-18) << step;
}

}  // namespace
}  // namespace starpipe::model
