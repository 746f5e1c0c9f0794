// SPDX-License-Identifier: Apache-2.0
// The shared parts of losses.
#pragma once

#include <cfloat>

#include "codelets/cuda/kernels/arithmetic.hpp"
#include "codelets/cuda/kernels/for_each.cuh"
#include "codelets/cuda/kernels/rows.cuh"
#include "starpipe/model/cuda_layer.hpp"

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

/// A loss whose stash has the shape of the input and is its gradient.
template <class T>
class GradientLoss : public CudaLoss {
 public:
  void backward_input(const Context& on, ConstMemory stash, float factor,
                      Memory input_gradient) const noexcept override {
    for_each_pack<Scaled<T>, pack_size<T>>(on, backward_name_, rows_ * columns_, stash.as<T>(),
                                           input_gradient.as<T>(), factor);
  }

 protected:
  /// `backward_name`: of the B pass, for messages.
  GradientLoss(const char* backward_name, std::size_t rows, std::size_t columns)
      : rows_(rows), columns_(columns), backward_name_(backward_name) {}

  /// Enqueues mean = sum(losses) / (rows * columns). Does nothing if `mean` is empty: F of the micro-batch
  /// was not asked for the loss.
  void mean_of_rows(const Context& on, const char* name, FloatView losses, FloatView mean,
                    std::size_t columns = 1) const noexcept {
    if (mean.empty()) return;
    launch(on, name, {dim3(1), dim3(default_threads)}, sum_of_rows<float>, rows_,
           static_cast<const float*>(losses.data()), static_cast<double>(rows_ * columns), mean.data());
  }

  std::size_t rows_;
  std::size_t columns_;

 private:
  const char* backward_name_;
};

/// The largest element of a row, and the sum of exp(x - largest) over the row.
struct ExpSum {
  float top;
  float sum;
};

/// Returns the ExpSum of the row x, in every thread of the team. Reads the row once.
template <class T, bool PerBlock, int N>
__device__ ExpSum exp_sum_of_row(const T* x, std::size_t columns) {
  OnlineSoftmax own;
  each_pack<T, PerBlock, N>(x, columns, [&](auto size, std::size_t column) {
    constexpr int count = decltype(size)::value;
    const Values<count> v = load<count>(x + column);
    float top = -FLT_MAX;  // not -infinity: a difference of two infinities would be NaN
    for (int k = 0; k < count; ++k) top = fmaxf(top, v[k]);
    own.raise(top);
    for (int k = 0; k < count; ++k) own.sum += expf(v[k] - own.top);
  });
  const float top = Team<PerBlock>::max(own.top);
  return {top, Team<PerBlock>::sum(own.sum * expf(own.top - top))};
}

}  // namespace starpipe::model::cuda
