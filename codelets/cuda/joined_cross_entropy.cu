// SPDX-License-Identifier: Apache-2.0
#include "codelets/cuda/kernels/element.hpp"
#include "codelets/cuda/kernels/losses.cuh"
#include "codelets/cuda/kernels/rows.cuh"
#include "starpipe/model/cuda_layer.hpp"

namespace starpipe::model::cuda {
namespace {

/// One warp a row of pairs (l, t): losses[row] = log-sum-exp(l) - sum(t), and gradient = softmax(l) / rows
/// for each l and -1 / rows for each t.
template <class T>
__global__ void forward_rows(std::size_t rows, std::size_t pairs, const T* __restrict__ input,
                             T* __restrict__ gradient, float* __restrict__ losses) {
  const std::size_t row = Team<false>::row();
  const unsigned lane = Team<false>::lane();
  if (row >= rows) return;
  const T* const x = input + row * 2 * pairs;
  float largest = -INFINITY;
  float logit = 0;
  for (std::size_t p = lane; p < pairs; p += warp_size) {
    largest = fmaxf(largest, static_cast<float>(x[2 * p]));
    logit += static_cast<float>(x[2 * p + 1]);
  }
  const float top = warp_max(largest);
  float own = 0;
  for (std::size_t p = lane; p < pairs; p += warp_size) own += expf(static_cast<float>(x[2 * p]) - top);
  const float sum = warp_sum(own);
  const float target = warp_sum(logit);
  const float n = static_cast<float>(rows);
  for (std::size_t p = lane; p < pairs; p += warp_size) {
    T* const of_pair = gradient + row * 2 * pairs + 2 * p;
    of_pair[0] = static_cast<T>(expf(static_cast<float>(x[2 * p]) - top) / (sum * n));
    of_pair[1] = static_cast<T>(-1.0f / n);
  }
  if (lane == 0) losses[row] = (top - target) + logf(sum);
}

/// codelets/cpu/joined_cross_entropy.cpp on a GPU.
template <class T>
class JoinedCrossEntropy final : public CudaLoss {
 public:
  JoinedCrossEntropy(std::size_t rows, std::size_t columns) : rows_(rows), columns_(columns) {}

  void forward(const Context& on, ConstMemory input, std::span<const float> /*target*/, Memory stash,
               std::span<float> mean, std::span<float> scratch) const noexcept override {
    launch(on, "joined_cross_entropy F", warp_per_row(rows_), forward_rows<T>, rows_, columns_ / 2,
           input.as<T>(), stash.as<T>(), scratch.data());
    mean_of(on, "joined_cross_entropy F", rows_, scratch.data(), static_cast<double>(rows_), mean);
  }

  void backward_input(const Context& on, ConstMemory stash, float scale,
                      Memory input_gradient) const noexcept override {
    cuda::scale(on, "joined_cross_entropy B", rows_ * columns_, stash.as<T>(), input_gradient.as<T>(), scale);
  }

 private:
  std::size_t rows_;
  std::size_t columns_;
};

const bool registered = register_cuda_loss(
    "joined_cross_entropy", [](std::size_t rows, std::size_t columns, Precision precision) {
      return make_for<CudaLoss, JoinedCrossEntropy>(precision, rows, columns);
    });

}  // namespace
}  // namespace starpipe::model::cuda
