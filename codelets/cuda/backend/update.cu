// SPDX-License-Identifier: Apache-2.0
#include "codelets/cuda/backend/stream_backend.hpp"
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
    const Values<N> gradient = load<N>(g + i);
    Values<N> x = load<N>(w + i);
    Values<N> m = load<N>(first + i);
    Values<N> v = load<N>(second + i);
    for (int k = 0; k < N; ++k) {
      const float slope = by.scale * gradient[k];
      m[k] += by.new1 * (slope - m[k]);
      v[k] = by.beta2 * v[k] + by.new2 * slope * slope;
      x[k] = by.keep * x[k] - by.rate * (m[k] / (sqrtf(v[k]) / by.root + by.epsilon));
    }
    store(w + i, x);
    store(first + i, m);
    store(second + i, v);
  }
};

struct Sgd {
  SgdFactors by;
  const float* g;
  float* w;
  template <int N>
  __device__ void run(std::size_t i) const {
    const Values<N> gradient = load<N>(g + i);
    Values<N> x = load<N>(w + i);
    for (int k = 0; k < N; ++k) x[k] -= by.rate * (by.scale * gradient[k] + by.decay * x[k]);
    store(w + i, x);
  }
};

struct SgdWithMomentum {
  SgdFactors by;
  const float* g;
  float* w;
  float* velocity;
  template <int N>
  __device__ void run(std::size_t i) const {
    const Values<N> gradient = load<N>(g + i);
    Values<N> x = load<N>(w + i);
    Values<N> v = load<N>(velocity + i);
    for (int k = 0; k < N; ++k) {
      v[k] = by.momentum * v[k] + (by.scale * gradient[k] + by.decay * x[k]);
      x[k] -= by.rate * v[k];
    }
    store(w + i, x);
    store(velocity + i, v);
  }
};

}  // namespace

void update(const Context& on, const OptimizerConfig& config, const Update& update, ConstFloatView gradient,
            FloatView parameters, FloatView state) noexcept {
  constexpr int size = pack_size<float>;
  for (const auto& [first, count, decays] : update.ranges) {
    const float* g = gradient.data() + first;
    float* w = parameters.data() + first;
    if (config.kind == "adamw") {
      float* moments = state.data() + first;
      for_each_pack<AdamW, size>(on, "adamw", count, adamw_factors(config, update, decays), g, w, moments,
                                 moments + parameters.size());
    } else if (config.momentum == 0) {
      for_each_pack<Sgd, size>(on, "sgd", count, sgd_factors(config, update, decays), g, w);
    } else {
      for_each_pack<SgdWithMomentum, size>(on, "sgd", count, sgd_factors(config, update, decays), g, w,
                                           state.data() + first);
    }
  }
}

}  // namespace starpipe::model::cuda
