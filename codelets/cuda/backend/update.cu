// SPDX-License-Identifier: Apache-2.0
#include "codelets/cuda/backend/update.hpp"

#include "codelets/cuda/kernels/for_each.cuh"

namespace starpipe::model::cuda {
namespace {

// The updates of OptimizerConfig's kinds, for for_each_pack(). g: gradient, w: parameters.

struct AdamW {
  AdamWFactors by;
  const float* g;
  float* w;
  float* first;
  float* second;
  template <int N>
  __device__ void run(std::size_t i) const {
    const Values<N> slope = load<N>(g + i);
    Values<N> x = load<N>(w + i);
    Values<N> m = load<N>(first + i);
    Values<N> v = load<N>(second + i);
    for (int k = 0; k < N; ++k) {
      m[k] += by.new1 * (slope[k] - m[k]);
      v[k] = by.beta2 * v[k] + by.new2 * slope[k] * slope[k];
      x[k] = by.keep * x[k] - by.rate * (m[k] / (sqrtf(v[k]) / by.root + by.epsilon));
    }
    store(w + i, x);
    store(first + i, m);
    store(second + i, v);
  }
};

struct Sgd {
  float rate;
  float decay;
  const float* g;
  float* w;
  template <int N>
  __device__ void run(std::size_t i) const {
    const Values<N> slope = load<N>(g + i);
    Values<N> x = load<N>(w + i);
    for (int k = 0; k < N; ++k) x[k] -= rate * (slope[k] + decay * x[k]);
    store(w + i, x);
  }
};

struct SgdWithMomentum {
  float rate;
  float decay;
  float momentum;
  const float* g;
  float* w;
  float* velocity;
  template <int N>
  __device__ void run(std::size_t i) const {
    const Values<N> slope = load<N>(g + i);
    Values<N> x = load<N>(w + i);
    Values<N> v = load<N>(velocity + i);
    for (int k = 0; k < N; ++k) {
      v[k] = momentum * v[k] + (slope[k] + decay * x[k]);
      x[k] -= rate * v[k];
    }
    store(w + i, x);
    store(velocity + i, v);
  }
};

}  // namespace

void update(const Context& on, const OptimizerConfig& config, int step, std::span<const float> gradient,
            std::span<float> parameters, std::span<float> state) noexcept {
  const std::size_t count = parameters.size();
  const float* g = gradient.data();
  float* w = parameters.data();
  constexpr int size = pack_size<float>;
  if (config.kind == "adamw") {
    for_each_pack<AdamW, size>(on, "adamw", count, adamw_factors(config, step), g, w, state.data(),
                               state.data() + count);
    return;
  }
  const float rate = static_cast<float>(config.learning_rate);
  const float decay = static_cast<float>(config.weight_decay);
  if (config.momentum == 0) {
    for_each_pack<Sgd, size>(on, "sgd", count, rate, decay, g, w);
    return;
  }
  for_each_pack<SgdWithMomentum, size>(on, "sgd", count, rate, decay, static_cast<float>(config.momentum), g,
                                       w, state.data());
}

}  // namespace starpipe::model::cuda
