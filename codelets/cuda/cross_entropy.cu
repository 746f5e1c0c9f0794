// SPDX-License-Identifier: Apache-2.0
#include "codelets/cuda/kernels/element.hpp"
#include "codelets/cuda/kernels/losses.cuh"
#include "codelets/cuda/kernels/rows.cuh"
#include "starpipe/model/cuda_layer.hpp"

namespace starpipe::model::cuda {
namespace {

/// One team a row: losses[row] = log-sum-exp(x) - x[label], and gradient = (softmax(x) - one-hot(label)) /
/// rows.
template <class T, bool PerBlock, int N>
__global__ void __launch_bounds__(wide_row_threads)
    forward_rows(std::size_t rows, std::size_t columns, const T* __restrict__ input,
                 const float* __restrict__ labels, T* __restrict__ gradient, float* __restrict__ losses) {
  using Team = cuda::Team<PerBlock>;
  const std::size_t row = Team::row();
  if (row >= rows) return;
  const T* const x = input + row * columns;
  const auto [top, sum] = exp_sum_of_row<T, PerBlock, N>(x, columns);
  const std::size_t label = index_of(labels[row], columns);
  const float n = static_cast<float>(rows);
  const float scale = 1.0f / (sum * n);
  each_pack<T, PerBlock, N>(x, columns, [&](auto size, std::size_t column) {
    constexpr int count = decltype(size)::value;
    Values<count> p = load<count>(x + column);
    for (int k = 0; k < count; ++k) {
      p[k] = expf(p[k] - top) * scale;
      if (column + static_cast<unsigned>(k) == label) p[k] -= 1.0f / n;
    }
    store(gradient + row * columns + column, p);
  });
  if (Team::lane() == 0) losses[row] = (top - static_cast<float>(x[label])) + logf(sum);
}

/// codelets/cpu/cross_entropy.cpp on a GPU.
template <class T>
class CrossEntropy final : public CudaLoss {
 public:
  CrossEntropy(std::size_t rows, std::size_t columns) : rows_(rows), columns_(columns) {}

  void forward(const Context& on, ConstMemory input, std::span<const float> target, Memory stash,
               std::span<float> mean, std::span<float> scratch) const noexcept override {
    const T* x = input.as<T>();
    T* gradient = stash.as<T>();
    // A row of x need not begin at a pack. With both arrays aligned, though, a row of x and the same row of
    // the gradient are equally far from a pack, and each_pack() finds packs in both.
    const bool aligned = pack_aligned(x, gradient);
    with_teams<T>(rows_, columns_, aligned, [&](auto per_block, auto size, const Grid& grid) {
      launch(on, "cross_entropy F", grid, forward_rows<T, per_block, size>, rows_, columns_, x, target.data(),
             gradient, scratch.data());
    });
    mean_of(on, "cross_entropy F", rows_, scratch.data(), static_cast<double>(rows_), mean);
  }

  void backward_input(const Context& on, ConstMemory stash, float scale,
                      Memory input_gradient) const noexcept override {
    cuda::scale(on, "cross_entropy B", rows_ * columns_, stash.as<T>(), input_gradient.as<T>(), scale);
  }

 private:
  std::size_t rows_;
  std::size_t columns_;
};

const bool registered =
    register_cuda_loss("cross_entropy", [](std::size_t rows, std::size_t columns, Precision precision) {
      return make_for<CudaLoss, CrossEntropy>(precision, rows, columns);
    });

}  // namespace
}  // namespace starpipe::model::cuda
