// SPDX-License-Identifier: Apache-2.0
#include "codelets/cuda/losses.cuh"
#include "starpipe/model/cuda_twin.hpp"

namespace starpipe::model::cuda {
namespace {

/// Of each row: its loss, and (softmax - one-hot) / rows.
template <class T>
__global__ void forward_rows(std::size_t rows, std::size_t columns, const T* input, const float* labels,
                             T* gradient, float* losses) {
  const std::size_t row = std::size_t{blockIdx.x} * kLossRowsPerBlock + threadIdx.x / kWarp;
  const std::size_t lane = threadIdx.x % kWarp;
  if (row >= rows) return;
  const T* x = input + row * columns;
  float top = -INFINITY;
  for (std::size_t c = lane; c < columns; c += kWarp) top = fmaxf(top, static_cast<float>(x[c]));
  top = warp_max(top);
  float sum = 0;
  for (std::size_t c = lane; c < columns; c += kWarp) sum += expf(static_cast<float>(x[c]) - top);
  sum = warp_sum(sum);
  const std::size_t label = index_of(labels[row], columns);
  const float n = static_cast<float>(rows);
  const float scale = 1.0f / (sum * n);
  for (std::size_t c = lane; c < columns; c += kWarp) {
    const float p = expf(static_cast<float>(x[c]) - top) * scale;
    gradient[row * columns + c] = static_cast<T>(c == label ? p - 1.0f / n : p);
  }
  if (lane == 0) losses[row] = (top - static_cast<float>(x[label])) + logf(sum);
}

/// codelets/cpu/cross_entropy.cpp on a GPU.
template <class T>
class CrossEntropy final : public CudaLoss {
 public:
  CrossEntropy(std::size_t rows, std::size_t columns) : rows_(rows), columns_(columns) {}

  void forward(const Context& on, ConstMemory input, std::span<const float> target, Memory stash,
               std::span<float> mean, std::span<float> scratch) const noexcept override {
    launch(on, "cross_entropy F", loss_grid(rows_), forward_rows<T>, rows_, columns_, input.as<T>(),
           target.data(), stash.as<T>(), scratch.data());
    if (mean.empty()) return;
    launch(on, "cross_entropy F", {dim3(1), dim3(kThreads)}, sum_of_rows<float>, rows_, scratch.data(),
           static_cast<double>(rows_), mean.data());
  }

  void backward_input(const Context& on, ConstMemory stash, float scale,
                      Memory input_gradient) const noexcept override {
    for_each(on, "cross_entropy B", rows_ * columns_,
             Scaled<T>{stash.as<T>(), input_gradient.as<T>(), scale});
  }

 private:
  std::size_t rows_;
  std::size_t columns_;
};

const bool registered =
    register_cuda_loss("cross_entropy", [](std::size_t rows, std::size_t columns, Precision precision) {
      return make_twin<CudaLoss, CrossEntropy>(precision, rows, columns);
    });

}  // namespace
}  // namespace starpipe::model::cuda
