// SPDX-License-Identifier: Apache-2.0
#include "starpipe/model/optimizer.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <concepts>
#include <numbers>

#include "model/arithmetic.hpp"
#include "model/full_width.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::model {
namespace {

/// Applies the formula to each number. The arrays do not overlap.
template <class Formula, std::same_as<float>... Float>
void apply(Formula formula, std::size_t count, const float* __restrict gradient,
           Float* __restrict... arrays) {
  for (std::size_t i = 0; i < count; ++i) formula(gradient[i], arrays[i]...);
}

using Lanes = std::array<double, norm_lanes>;

double sum_of(Lanes lanes) {
  for (std::size_t distance = norm_lanes / 2; distance > 0; distance /= 2) {
    for (std::size_t lane = 0; lane < distance; ++lane) lanes[lane] += lanes[lane + distance];
  }
  return lanes[0];
}

double chunk_sum(const float* values, std::size_t count) {
  Lanes lanes{};
  const std::size_t whole = count - count % norm_lanes;
  const auto add = [&](std::size_t lane, std::size_t i) {
    const auto value = static_cast<double>(values[i]);
    lanes[lane] += value * value;
  };
  at_full_width([&] {
    for (std::size_t i = 0; i < whole; i += norm_lanes) {
      for (std::size_t lane = 0; lane < norm_lanes; ++lane) add(lane, i + lane);
    }
    for (std::size_t i = whole; i < count; ++i) add(i - whole, i);
  });
  return sum_of(lanes);
}

}  // namespace

std::size_t optimizer_state_size(const OptimizerConfig& config, std::size_t parameters) {
  if (config.kind == "adamw") return 2 * parameters;
  return config.momentum != 0 ? parameters : 0;
}

std::vector<DecayRange> decay_ranges(const OptimizerConfig& config, std::span<const Parameter> parameters) {
  std::vector<DecayRange> ranges;
  std::size_t first = 0;
  for (const Parameter& parameter : parameters) {
    const bool decays = config.decay == "all" || parameter.shape.size() >= 2;
    if (ranges.empty() || ranges.back().decays != decays) ranges.push_back({first, 0, decays});
    ranges.back().count += parameter.size();
    first += parameter.size();
  }
  return ranges;
}

void optimizer_step(const OptimizerConfig& config, const Update& update, ConstFloatView gradient,
                    FloatView parameters, FloatView state) noexcept {
  for_each_range(config, update, gradient, parameters, state,
                 [](const auto& formula, std::size_t count, const float* g, auto*... arrays) {
                   at_full_width([&] { apply(formula, count, g, arrays...); });
                 });
}

double sum_of_squares(ConstFloatView values) noexcept {
  Lanes lanes{};
  for (std::size_t chunk = 0; chunk * norm_chunk < values.size(); ++chunk) {
    const std::size_t first = chunk * norm_chunk;
    lanes[chunk % norm_lanes] += chunk_sum(&values[first], std::min(norm_chunk, values.size() - first));
  }
  return sum_of(lanes);
}

std::size_t norm_scratch_words(std::span<const std::size_t> sizes) {
  std::size_t doubles = sizes.size();
  for (const std::size_t size : sizes) doubles += ceil_div(size, norm_chunk);
  return doubles * (sizeof(double) / sizeof(float));
}

double gradient_norm(std::span<const double> sums) noexcept {
  double all = 0;
  for (const double sum : sums) all += sum;
  return std::sqrt(all);
}

float clip_scale(std::optional<double> clip, double norm) noexcept {
  if (!clip) return 1;
  const double scale = *clip / (norm + 1e-6);
  return scale >= 1 ? 1.0F : static_cast<float>(scale);  // a NaN stays
}

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
