// SPDX-License-Identifier: Apache-2.0
#include <cfloat>

#include "codelets/cuda/kernels/losses.cuh"
#include "starpipe/model/cuda_layer.hpp"

namespace starpipe::model::cuda {
namespace {

constexpr std::size_t kWarpColumns = 2048;  // wider rows have a block each,
constexpr unsigned kManyThreads = 1024;     // so large that few run at a time and caches hold their rows

/// function(size, column) for all columns of a row, in packs of N from the first column on that begins one.
template <class T, bool kBlock, int N, class Function>
__device__ void each_pack(const T* row, std::size_t columns, Function function) {
  constexpr std::integral_constant<int, 1> kOne;
  const unsigned lane = Team<kBlock>::lane();
  const auto past = reinterpret_cast<std::uintptr_t>(row) % (N * sizeof(T)) / sizeof(T);
  const std::size_t before = past == 0 ? 0 : N - past;
  if (lane < before && lane < columns) function(kOne, std::size_t{lane});
  std::size_t column = before + std::size_t{lane} * N;
  for (; column + N <= columns; column += std::size_t{Team<kBlock>::size()} * N) {
    function(std::integral_constant<int, N>{}, column);
  }
  // At most one thread has a pack that the row does not fill.
  for (; N > 1 && column < columns; ++column) function(kOne, column);
}

/// Of each row: its loss, and (softmax - one-hot) / rows.
template <class T, bool kBlock, int N>
__global__ void __launch_bounds__(kManyThreads)
    forward_rows(std::size_t rows, std::size_t columns, const T* __restrict__ input,
                 const float* __restrict__ labels, T* __restrict__ gradient, float* __restrict__ losses) {
  using Team = cuda::Team<kBlock>;
  const std::size_t row = Team::row();
  if (row >= rows) return;
  const T* const x = input + row * columns;
  OnlineSoftmax own;
  each_pack<T, kBlock, N>(x, columns, [&](auto size, std::size_t column) {
    constexpr int kSize = decltype(size)::value;
    const Values<kSize> v = load<kSize>(x + column);
    float top = -FLT_MAX;  // not infinity, from which nothing is a number away
    for (int k = 0; k < kSize; ++k) top = fmaxf(top, v[k]);
    own.raise(top);
    for (int k = 0; k < kSize; ++k) own.sum += expf(v[k] - own.top);
  });
  const float top = Team::max(own.top);
  const float sum = Team::sum(own.sum * expf(own.top - top));
  const std::size_t label = index_of(labels[row], columns);
  const float n = static_cast<float>(rows);
  const float scale = 1.0f / (sum * n);
  each_pack<T, kBlock, N>(x, columns, [&](auto size, std::size_t column) {
    constexpr int kSize = decltype(size)::value;
    Values<kSize> p = load<kSize>(x + column);
    for (int k = 0; k < kSize; ++k) {
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
    // Rows of odd numbers of columns do not begin packs, but each one of both arrays then is as far off.
    with_packs<kPack<T>>(begin_packs(x, gradient), [&](auto size) {
      const auto run = [&](auto kernel, const Grid& grid) {
        launch(on, "cross_entropy F", grid, kernel, rows_, columns_, x, target.data(), gradient,
               scratch.data());
      };
      if (columns_ <= kWarpColumns) {
        run(forward_rows<T, false, size>, warp_rows(rows_));
      } else {
        run(forward_rows<T, true, size>, block_rows(rows_, kManyThreads));
      }
    });
    if (mean.empty()) return;
    launch(on, "cross_entropy F", {dim3(1), dim3(kThreads)}, sum_of_rows<float>, rows_, scratch.data(),
           static_cast<double>(rows_), mean.data());
  }

  void backward_input(const Context& on, ConstMemory stash, float scale,
                      Memory input_gradient) const noexcept override {
    for_each_pack<Scaled<T>, kPack<T>>(on, "cross_entropy B", rows_ * columns_, stash.as<T>(),
                                       input_gradient.as<T>(), scale);
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
