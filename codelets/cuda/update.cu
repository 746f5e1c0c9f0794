// SPDX-License-Identifier: Apache-2.0
#include "codelets/cuda/update.hpp"

#include "codelets/cuda/kernels.cuh"

namespace starpipe::model::cuda {
namespace {

struct AdamW {
  AdamWFactors by;
  const float* g;
  float* w;
  float* first;
  float* second;
  __device__ void operator()(std::size_t i) const {
    first[i] += by.new1 * (g[i] - first[i]);
    second[i] = by.beta2 * second[i] + by.new2 * g[i] * g[i];
    w[i] = by.keep * w[i] - by.rate * (first[i] / (sqrtf(second[i]) / by.root + by.epsilon));
  }
};

struct Sgd {
  float rate;
  float decay;
  const float* g;
  float* w;
  __device__ void operator()(std::size_t i) const { w[i] -= rate * (g[i] + decay * w[i]); }
};

struct SgdWithMomentum {
  float rate;
  float decay;
  float momentum;
  const float* g;
  float* w;
  float* velocity;
  __device__ void operator()(std::size_t i) const {
    velocity[i] = momentum * velocity[i] + (g[i] + decay * w[i]);
    w[i] -= rate * velocity[i];
  }
};

}  // namespace

void update(const Context& on, const OptimizerConfig& config, int step, std::span<const float> gradient,
            std::span<float> parameters, std::span<float> state) noexcept {
  const std::size_t count = parameters.size();
  const float* g = gradient.data();
  float* w = parameters.data();
  if (config.kind == "adamw") {
    for_each(on, "adamw", count,
             AdamW{adamw_factors(config, step), g, w, state.data(), state.data() + count});
    return;
  }
  const float rate = static_cast<float>(config.learning_rate);
  const float decay = static_cast<float>(config.weight_decay);
  if (config.momentum == 0) {
    for_each(on, "sgd", count, Sgd{rate, decay, g, w});
    return;
  }
  for_each(on, "sgd", count,
           SgdWithMomentum{rate, decay, static_cast<float>(config.momentum), g, w, state.data()});
}

}  // namespace starpipe::model::cuda
