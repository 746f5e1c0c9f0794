// SPDX-License-Identifier: Apache-2.0
// The arithmetic of single elements and rows, for the host and the device: what can be checked without a GPU
// is here. No CUDA is needed to include it.
#pragma once

#include <cmath>
#include <cstddef>

#ifdef __CUDACC__
#define STARPIPE_HOST_DEVICE __host__ __device__
#else
#define STARPIPE_HOST_DEVICE
#endif

namespace starpipe::model::cuda {

/// How many parts of `size` hold `count`.
STARPIPE_HOST_DEVICE constexpr std::size_t parts(std::size_t count, std::size_t size) {
  return (count + size - 1) / size;
}

/// A token id as an index below `count`. An id out of range is a bug elsewhere; passes cannot throw, and
/// it must not become a wild access.
STARPIPE_HOST_DEVICE inline std::size_t index_of(float id, std::size_t count) {
  if (!(id >= 0)) return 0;
  return id < static_cast<float>(count) ? static_cast<std::size_t>(id) : count - 1;
}

/// softmax over values that come in blocks (Milakov and Gimelshein, arXiv 1805.02867): sums are kept relative
/// to the largest value so far, and brought to the new scale when a block has a larger one.
struct OnlineSoftmax {
  float top = -INFINITY;
  float sum = 0;  ///< of exp(value - top)

  /// Before a block whose largest value is `block_top`: what sums so far are to be multiplied by. `sum` is
  /// already; add the block's exp(value - top) to it afterwards.
  STARPIPE_HOST_DEVICE float raise(float block_top) {
    const float before = top;
    top = fmaxf(before, block_top);
    const float scale = before == -INFINITY ? 0.0f : expf(before - top);
    sum *= scale;
    return scale;
  }
  STARPIPE_HOST_DEVICE float log_sum_exp() const { return top + logf(sum); }
};

inline constexpr float kGeluScale = 0.7978845608028654f;  // sqrt(2 / pi)
inline constexpr float kGeluCubic = 0.044715f;

/// (1 + tanh(u)) / 2 with u = kGeluScale * (x + kGeluCubic x^3), as the logistic function of 2u.
STARPIPE_HOST_DEVICE inline float gelu_gate(float x) {
  return 1.0f / (1.0f + expf(-2.0f * kGeluScale * (x + kGeluCubic * x * x * x)));
}

STARPIPE_HOST_DEVICE inline float gelu(float x) { return x * gelu_gate(x); }

STARPIPE_HOST_DEVICE inline float gelu_slope(float x) {
  const float g = gelu_gate(x);
  // The second term is 0 long before |x| = 16; unbounded, x^3 would outgrow the saturated gate.
  const float z = fminf(fmaxf(x, -16.0f), 16.0f);
  const float slope = 2.0f * kGeluScale * (1.0f + 3.0f * kGeluCubic * z * z);  // d(2u)/dx
  return g + z * g * (1.0f - g) * slope;
}

}  // namespace starpipe::model::cuda
