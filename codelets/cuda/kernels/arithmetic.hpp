// SPDX-License-Identifier: Apache-2.0
// The arithmetic of single elements and rows, for the host and the device, so that tests can check it without
// a GPU. No CUDA is needed to include it.
#pragma once

#include <cmath>
#include <cstddef>

#ifdef __CUDACC__
#define STARPIPE_HOST_DEVICE __host__ __device__
#else
#define STARPIPE_HOST_DEVICE
#endif

namespace starpipe::model::cuda {

/// A token id as an index below `count`. An id out of range is a bug elsewhere, but passes cannot throw: the
/// id is clamped, so that it never becomes an access outside the table.
STARPIPE_HOST_DEVICE inline std::size_t index_of(float id, std::size_t count) {
  if (!(id >= 0)) return 0;
  return id < static_cast<float>(count) ? static_cast<std::size_t>(id) : count - 1;
}

/// The index of a token id in a shard of the vocabulary, which has `count` tokens from `first` on; `count`
/// when the shard does not have the token.
STARPIPE_HOST_DEVICE inline std::size_t index_in_shard(float id, std::size_t first, std::size_t count) {
  const bool has = id >= static_cast<float>(first) && id < static_cast<float>(first + count);
  return has ? static_cast<std::size_t>(id) - first : count;
}

/// Online softmax of values that come in blocks (Milakov and Gimelshein, arXiv 1805.02867): sums are kept
/// relative to the largest value so far, and rescaled when a block has a larger one.
struct OnlineSoftmax {
  float top = -INFINITY;  ///< the largest value so far
  float sum = 0;          ///< of exp(value - top)

  /// Call it before each block whose largest value is `block_top`. Rescales `sum` to the new top and returns
  /// the factor, with which the caller rescales its own sums. The caller then adds the block's exp(value -
  /// top) to `sum`.
  STARPIPE_HOST_DEVICE float raise(float block_top) {
    const float before = top;
    top = fmaxf(before, block_top);
    const float scale = before == -INFINITY ? 0.0f : expf(before - top);
    sum *= scale;
    return scale;
  }
  STARPIPE_HOST_DEVICE float log_sum_exp() const { return top + logf(sum); }
};

STARPIPE_HOST_DEVICE inline float logistic(float x) { return 1.0f / (1.0f + expf(-x)); }

inline constexpr float gelu_scale = 0.7978845608028654f;  // sqrt(2 / pi)
inline constexpr float gelu_cubic = 0.044715f;

/// (1 + tanh(u)) / 2 with u = gelu_scale * (x + gelu_cubic x^3), computed as the logistic function of 2u.
STARPIPE_HOST_DEVICE inline float gelu_gate(float x) {
  return logistic(2.0f * gelu_scale * (x + gelu_cubic * x * x * x));
}

STARPIPE_HOST_DEVICE inline float gelu(float x) { return x * gelu_gate(x); }

/// The derivative of gelu at x.
STARPIPE_HOST_DEVICE inline float gelu_slope(float x) {
  const float g = gelu_gate(x);
  // x is clamped for the second term: that term is 0 long before |x| = 16, but x^3 would overflow to
  // infinity.
  const float z = fminf(fmaxf(x, -16.0f), 16.0f);
  const float slope = 2.0f * gelu_scale * (1.0f + 3.0f * gelu_cubic * z * z);  // d(2u)/dx
  return g + z * g * (1.0f - g) * slope;
}

}  // namespace starpipe::model::cuda
