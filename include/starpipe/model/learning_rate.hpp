// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace starpipe::model {

/// The values of LearningRateSchedule::kind.
inline constexpr std::array<std::string_view, 4> learning_rate_kinds = {"constant", "linear", "cosine",
                                                                        "inverse_sqrt"};

/// `training.optimizer.schedule:` of the configuration: how the learning rate changes from step to step.
struct LearningRateSchedule {
  std::string kind = "constant";
  int warmup = 0;                           ///< steps in which the rate rises
  double floor = 0;                         ///< the lowest rate after the warm-up; not for `constant`
  std::optional<int> steps = std::nullopt;  ///< where `linear` and `cosine` reach the floor: the run's steps
};

/// The learning rate of step t, `step`, which counts from 0. `peak`: the rate after the warm-up.
///
/// With w = `warmup` and T = `steps`:
///   t < w:         peak (t + 1) / (w + 1)
///   constant:      peak
///   linear:        floor + (1 - x) (peak - floor), x = (t - w) / (T - w); floor from t = T on
///   cosine:        floor + (1 + cos(pi x)) / 2 (peak - floor), likewise
///   inverse_sqrt:  max(floor, peak sqrt((w + 1) / (t + 1)))
///
/// Warm-up and cosine are those of nanoGPT's get_lr; the cosine is from SGDR (arXiv 1608.03983, equation 5),
/// the inverse square root from "Attention Is All You Need" (arXiv 1706.03762, equation 3, with w + 1 steps
/// of warm-up). `schedule.steps` must have a value for `linear` and `cosine`. Thread-safe.
double learning_rate(const LearningRateSchedule& schedule, double peak, int step);

}  // namespace starpipe::model
