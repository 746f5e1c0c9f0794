// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "codelets/cuda/kernels/rows.cuh"

namespace starpipe::model::cuda {

/// mean = the sum of the rows' values / divisor. One block, whose order of summation is fixed; in double, as
/// on the CPU.
template <class T>
__global__ void sum_of_rows(std::size_t rows, const T* values, double divisor, float* mean) {
  __shared__ double sums[kThreads];
  double sum = 0;
#pragma unroll 8
  for (std::size_t r = threadIdx.x; r < rows; r += kThreads) sum += static_cast<double>(values[r]);
  sums[threadIdx.x] = sum;
  __syncthreads();
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) *mean = static_cast<float>(sums[0] / divisor);
}

/// gradient[i] = factor * stash[i].
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
