// SPDX-License-Identifier: Apache-2.0
#include "starpipe/model/optimizer.hpp"

#include <cmath>

namespace starpipe::model {

std::size_t optimizer_state_size(const OptimizerConfig& config, std::size_t parameters) {
  if (config.kind == "adamw") return 2 * parameters;
  return config.momentum != 0 ? parameters : 0;
}

AdamWFactors adamw_factors(const OptimizerConfig& config, int step) {
  return {.keep = static_cast<float>(1 - config.learning_rate * config.weight_decay),
          .new1 = static_cast<float>(1 - config.beta1),
          .beta2 = static_cast<float>(config.beta2),
          .new2 = static_cast<float>(1 - config.beta2),
          .rate = static_cast<float>(config.learning_rate / (1 - std::pow(config.beta1, step))),
          .root = static_cast<float>(std::sqrt(1 - std::pow(config.beta2, step))),
          .epsilon = static_cast<float>(config.epsilon)};
}

void optimizer_step(const OptimizerConfig& config, int step, std::span<const float> gradient,
                    std::span<float> parameters, std::span<float> state) noexcept {
  const std::size_t count = parameters.size();
  const float* __restrict g = gradient.data();
  float* __restrict w = parameters.data();
  const float decay = static_cast<float>(config.weight_decay);

  if (config.kind == "adamw") {
    const AdamWFactors by = adamw_factors(config, step);
    float* __restrict first = state.data();
    float* __restrict second = state.data() + count;
    for (std::size_t i = 0; i < count; ++i) {
      first[i] += by.new1 * (g[i] - first[i]);
      second[i] = by.beta2 * second[i] + by.new2 * g[i] * g[i];
      w[i] = by.keep * w[i] - by.rate * (first[i] / (std::sqrt(second[i]) / by.root + by.epsilon));
    }
    return;
  }

  const float rate = static_cast<float>(config.learning_rate);
  if (config.momentum == 0) {
    for (std::size_t i = 0; i < count; ++i) w[i] -= rate * (g[i] + decay * w[i]);
    return;
  }
  const float momentum = static_cast<float>(config.momentum);
  float* __restrict velocity = state.data();
  for (std::size_t i = 0; i < count; ++i) {
    velocity[i] = momentum * velocity[i] + (g[i] + decay * w[i]);
    w[i] -= rate * velocity[i];
  }
}

}  // namespace starpipe::model
