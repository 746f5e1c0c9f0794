// SPDX-License-Identifier: Apache-2.0
#include "starpipe/model/learning_rate.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace starpipe::model {

double learning_rate(const LearningRateSchedule& schedule, double peak, int step) {
  const double t = step;
  const double warmup = schedule.warmup;
  if (t < warmup) return peak * (t + 1) / (warmup + 1);
  if (schedule.kind == "constant") return peak;
  if (schedule.kind == "inverse_sqrt")
    return std::max(schedule.floor, peak * std::sqrt((warmup + 1) / (t + 1)));
  const double end = schedule.steps.value();
  if (t >= end) return schedule.floor;
  const double x = (t - warmup) / (end - warmup);
  const double share = schedule.kind == "linear" ? 1 - x : (1 + std::cos(std::numbers::pi * x)) / 2;
  return schedule.floor + share * (peak - schedule.floor);
}

}  // namespace starpipe::model
