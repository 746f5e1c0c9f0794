// SPDX-License-Identifier: Apache-2.0
// The size of a warp, and reductions over its lanes.
#pragma once

#include "codelets/cuda/kernels/launch.cuh"

namespace starpipe::model::cuda {

inline constexpr int warp_size = 32;
inline constexpr unsigned all_lanes = 0xffffffffu;
/// Threads of a block, unless a kernel needs another number.
inline constexpr unsigned default_threads = 256;

// Reductions over all 32 lanes, in a fixed order. Every lane gets the result.
template <class T>  // float or double
__device__ T warp_sum(T value) {
  for (int distance = warp_size / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(all_lanes, value, distance);
  }
  return value;
}
__device__ inline float warp_max(float value) {
  for (int distance = warp_size / 2; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(all_lanes, value, distance));
  }
  return value;
}

}  // namespace starpipe::model::cuda
