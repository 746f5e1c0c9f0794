// SPDX-License-Identifier: Apache-2.0
#include "starpipe/model/optimizer.hpp"

#include <cmath>

namespace starpipe::model {
namespace {

void adamw(const AdamWFactors& by, std::span<const float> gradient, std::span<float> parameters,
           std::span<float> first_moments, std::span<float> second_moments) {
  const float* __restrict g = gradient.data();
  float* __restrict w = parameters.data();
  float* __restrict first = first_moments.data();
  float* __restrict second = second_moments.data();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const float slope = by.scale * g[i];
    first[i] += by.new1 * (slope - first[i]);
    second[i] = by.beta2 * second[i] + by.new2 * slope * slope;
    w[i] = by.keep * w[i] - by.rate * (first[i] / (std::sqrt(second[i]) / by.root + by.epsilon));
  }
}

void sgd(const SgdFactors& by, std::span<const float> gradient, std::span<float> parameters) {
  const float* __restrict g = gradient.data();
  float* __restrict w = parameters.data();
  for (std::size_t i = 0; i < parameters.size(); ++i) w[i] -= by.rate * (by.scale * g[i] + by.decay * w[i]);
}

void sgd_with_momentum(const SgdFactors& by, std::span<const float> gradient, std::span<float> parameters,
                       std::span<float> velocities) {
  const float* __restrict g = gradient.data();
  float* __restrict w = parameters.data();
  float* __restrict velocity = velocities.data();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    velocity[i] = by.momentum * velocity[i] + (by.scale * g[i] + by.decay * w[i]);
    w[i] -= by.rate * velocity[i];
  }
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

AdamWFactors adamw_factors(const OptimizerConfig& config, const Update& update, bool decays) {
  const double rate = update.learning_rate;
  return {.scale = update.scale,
          .keep = static_cast<float>(decays ? 1 - rate * config.weight_decay : 1),
          .new1 = static_cast<float>(1 - config.beta1),
          .beta2 = static_cast<float>(config.beta2),
          .new2 = static_cast<float>(1 - config.beta2),
          .rate = static_cast<float>(rate / (1 - std::pow(config.beta1, update.number))),
          .root = static_cast<float>(std::sqrt(1 - std::pow(config.beta2, update.number))),
          .epsilon = static_cast<float>(config.epsilon)};
}

SgdFactors sgd_factors(const OptimizerConfig& config, const Update& update, bool decays) {
  return {.scale = update.scale,
          .decay = static_cast<float>(decays ? config.weight_decay : 0),
          .momentum = static_cast<float>(config.momentum),
          .rate = static_cast<float>(update.learning_rate)};
}

void optimizer_step(const OptimizerConfig& config, const Update& update, std::span<const float> gradient,
                    std::span<float> parameters, std::span<float> state) noexcept {
  for (const auto& [first, count, decays] : update.ranges) {
    const auto g = gradient.subspan(first, count);
    const auto w = parameters.subspan(first, count);
    if (config.kind == "adamw") {
      adamw(adamw_factors(config, update, decays), g, w, state.subspan(first, count),
            state.subspan(parameters.size() + first, count));
    } else if (config.momentum == 0) {
      sgd(sgd_factors(config, update, decays), g, w);
    } else {
      sgd_with_momentum(sgd_factors(config, update, decays), g, w, state.subspan(first, count));
    }
  }
}

}  // namespace starpipe::model
