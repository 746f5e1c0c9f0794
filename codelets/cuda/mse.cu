// SPDX-License-Identifier: Apache-2.0
#include "codelets/cuda/losses.cuh"
#include "starpipe/model/cuda_twin.hpp"

namespace starpipe::model::cuda {
namespace {

/// Of each row: the errors, and the sum of their squares.
template <class T>
__global__ void forward_rows(std::size_t rows, std::size_t columns, const T* input, const float* target,
                             T* errors, float* squares) {
  const std::size_t row = std::size_t{blockIdx.x} * kLossRowsPerBlock + threadIdx.x / kWarp;
  const std::size_t lane = threadIdx.x % kWarp;
  if (row >= rows) return;
  float sum = 0;
  for (std::size_t c = lane; c < columns; c += kWarp) {
    const std::size_t i = row * columns + c;
    const float error = static_cast<float>(input[i]) - target[i];
    errors[i] = static_cast<T>(error);
    sum += error * error;
  }
  sum = warp_sum(sum);
  if (lane == 0) squares[row] = sum;
}

/// codelets/cpu/mse.cpp on a GPU.
template <class T>
class MeanSquaredError final : public CudaLoss {
 public:
  MeanSquaredError(std::size_t rows, std::size_t columns) : rows_(rows), columns_(columns) {}

  void forward(const Context& on, ConstMemory input, std::span<const float> target, Memory stash,
               std::span<float> mean, std::span<float> scratch) const noexcept override {
    launch(on, "mse F", loss_grid(rows_), forward_rows<T>, rows_, columns_, input.as<T>(), target.data(),
           stash.as<T>(), scratch.data());
    if (mean.empty()) return;
    launch(on, "mse F", {dim3(1), dim3(kThreads)}, sum_of_rows<float>, rows_, scratch.data(),
           static_cast<double>(rows_ * columns_), mean.data());
  }

  void backward_input(const Context& on, ConstMemory stash, float scale,
                      Memory input_gradient) const noexcept override {
    const float factor = 2.0f * scale / static_cast<float>(rows_ * columns_);
    for_each(on, "mse B", rows_ * columns_, Scaled<T>{stash.as<T>(), input_gradient.as<T>(), factor});
  }

 private:
  std::size_t rows_;
  std::size_t columns_;
};

const bool registered =
    register_cuda_loss("mse", [](std::size_t rows, std::size_t columns, Precision precision) {
      return make_twin<CudaLoss, MeanSquaredError>(precision, rows, columns);
    });

}  // namespace
}  // namespace starpipe::model::cuda
