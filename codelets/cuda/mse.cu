// SPDX-License-Identifier: Apache-2.0
#include "codelets/cuda/kernels/element.hpp"
#include "codelets/cuda/kernels/losses.cuh"
#include "codelets/cuda/kernels/rows.cuh"
#include "starpipe/model/cuda_layer.hpp"

namespace starpipe::model::cuda {
namespace {

/// One warp per row: errors = input - target, and squares[row] = the sum of the row's squared errors.
template <class T, int N>
__global__ void forward_rows(std::size_t rows, std::size_t columns, const T* __restrict__ input,
                             const float* __restrict__ target, T* __restrict__ errors,
                             float* __restrict__ squares) {
  const std::size_t row = Team<false>::row();
  const unsigned lane = Team<false>::lane();
  if (row >= rows) return;
  float sum = 0;
  for (std::size_t column = std::size_t{lane} * N; column < columns; column += warp_size * N) {
    const std::size_t i = row * columns + column;
    Values<N> error = load<N>(input + i);
    const Values<N> wanted = load<N>(target + i);
    for (int k = 0; k < N; ++k) {
      error[k] -= wanted[k];
      sum += error[k] * error[k];
    }
    store(errors + i, error);
  }
  sum = warp_sum(sum);
  if (lane == 0) squares[row] = sum;
}

/// codelets/cpu/mse.cpp on a GPU.
template <class T>
class MeanSquaredError final : public GradientLoss<T> {
 public:
  MeanSquaredError(std::size_t rows, std::size_t columns) : GradientLoss<T>("mse B", rows, columns) {}

  void forward(const Context& on, ConstMemory input, ConstFloatView target, Memory stash, FloatView mean,
               FloatView scratch) const noexcept override {
    const T* x = input.as<T>();
    T* errors = stash.as<T>();
    const bool packs = this->columns_ % pack_size<T> == 0 && pack_aligned(x, target.data(), errors);
    with_pack_size<pack_size<T>>(packs, [&](auto size) {
      launch(on, "mse F", warp_per_row(this->rows_), forward_rows<T, size>, this->rows_, this->columns_, x,
             target.data(), errors, scratch.data());
    });
    this->mean_of_rows(on, "mse F", scratch, mean, this->columns_);
  }

  void backward_input(const Context& on, ConstMemory stash, float scale,
                      Memory input_gradient) const noexcept override {
    const float factor = 2.0f * scale / static_cast<float>(this->rows_ * this->columns_);
    GradientLoss<T>::backward_input(on, stash, factor, input_gradient);
  }
};

const bool registered = register_loss_implementation<MeanSquaredError>("mse");

}  // namespace
}  // namespace starpipe::model::cuda
