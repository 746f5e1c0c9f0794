// SPDX-License-Identifier: Apache-2.0
#include <cfloat>

#include "codelets/cuda/kernels/arithmetic.hpp"
#include "codelets/cuda/kernels/element.hpp"
#include "codelets/cuda/kernels/for_each.cuh"
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
  OnlineSoftmax own;
  each_pack<T, PerBlock, N>(x, columns, [&](auto size, std::size_t column) {
    constexpr int count = decltype(size)::value;
    const Values<count> v = load<count>(x + column);
    float top = -FLT_MAX;  // not -infinity: a difference of two infinities would be NaN
    for (int k = 0; k < count; ++k) top = fmaxf(top, v[k]);
    own.raise(top);
    for (int k = 0; k < count; ++k) own.sum += expf(v[k] - own.top);
  });
  const float top = Team::max(own.top);
  const float sum = Team::sum(own.sum * expf(own.top - top));
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
    with_pack_size<pack_size<T>>(pack_aligned(x, gradient), [&](auto size) {
      const auto run = [&](auto kernel, const Grid& grid) {
        launch(on, "cross_entropy F", grid, kernel, rows_, columns_, x, target.data(), gradient,
               scratch.data());
      };
      if (columns_ <= most_warp_columns) {
        run(forward_rows<T, false, size>, warp_per_row(rows_));
      } else {
        run(forward_rows<T, true, size>, block_per_row(rows_, wide_row_threads));
      }
    });
    if (mean.empty()) return;
    launch(on, "cross_entropy F", {dim3(1), dim3(default_threads)}, sum_of_rows<float>, rows_, scratch.data(),
           static_cast<double>(rows_), mean.data());
  }

  void backward_input(const Context& on, ConstMemory stash, float scale,
                      Memory input_gradient) const noexcept override {
    for_each_pack<Scaled<T>, pack_size<T>>(on, "cross_entropy B", rows_ * columns_, stash.as<T>(),
                                           input_gradient.as<T>(), scale);
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
