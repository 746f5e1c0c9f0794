// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "codelets/cuda/kernels/packs.cuh"
#include "codelets/cuda/kernels/warp.cuh"

namespace starpipe::model::cuda {

/// mean = (values[0] + ... + values[rows - 1]) / divisor. For a grid of one block of default_threads: the
/// order of summation is fixed. Sums are in double, as on the CPU.
template <class T>
__global__ void sum_of_rows(std::size_t rows, const T* values, double divisor, float* mean) {
  __shared__ double sums[default_threads];
  double sum = 0;
#pragma unroll 8
  for (std::size_t r = threadIdx.x; r < rows; r += default_threads) sum += static_cast<double>(values[r]);
  sums[threadIdx.x] = sum;
  __syncthreads();
  for (unsigned half = default_threads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) *mean = static_cast<float>(sums[0] / divisor);
}

/// gradient[i] = factor * stash[i], for for_each_pack().
template <class T>
struct Scaled {
  const T* stash;
  T* gradient;
  float factor;
  template <int N>
  __device__ void run(std::size_t i) const {
    Values<N> x = load<N>(stash + i);
    for (int k = 0; k < N; ++k) x[k] *= factor;
    store(gradient + i, x);
  }
};

}  // namespace starpipe::model::cuda
