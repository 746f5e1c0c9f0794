// SPDX-License-Identifier: Apache-2.0
#include "codelets/cuda/kernels/arithmetic.hpp"
#include "codelets/cuda/kernels/device.hpp"
#include "codelets/cuda/kernels/element.hpp"
#include "codelets/cuda/kernels/losses.cuh"
#include "codelets/cuda/kernels/rows.cuh"
#include "starpipe/model/cuda_layer.hpp"

namespace starpipe::model::cuda {
namespace {

/// One team a row: logarithms[row] = log-sum-exp(x), and the row of the output is this number and the logit
/// of the row's label, or 0 where the shard does not have the label.
template <class T, bool PerBlock, int N>
__global__ void __launch_bounds__(wide_row_threads)
    forward_rows(std::size_t rows, std::size_t columns, std::size_t first, const T* __restrict__ input,
                 const float* __restrict__ labels, float* __restrict__ logarithms,
                 float* __restrict__ output) {
  using Team = cuda::Team<PerBlock>;
  const std::size_t row = Team::row();
  if (row >= rows) return;
  const T* const x = input + row * columns;
  const auto [top, sum] = exp_sum_of_row<T, PerBlock, N>(x, columns);
  if (Team::lane() != 0) return;
  const std::size_t label = index_in_shard(labels[row], first, columns);
  const float logarithm = top + logf(sum);
  logarithms[row] = logarithm;
  output[2 * row] = logarithm;
  output[2 * row + 1] = label < columns ? static_cast<float>(x[label]) : 0.0f;
}

/// One team a row: dx = dl * exp(x - logarithm), and at the label also dt, where dl and dt are the gradients
/// of the two numbers of the row.
template <class T, bool PerBlock, int N>
__global__ void __launch_bounds__(wide_row_threads)
    backward_rows(std::size_t rows, std::size_t columns, std::size_t first, const T* __restrict__ input,
                  const float* __restrict__ labels, const float* __restrict__ logarithms,
                  const float* __restrict__ output_gradient, T* __restrict__ input_gradient) {
  const std::size_t row = Team<PerBlock>::row();
  if (row >= rows) return;
  const T* const x = input + row * columns;
  const float logarithm = logarithms[row];
  const float of_logarithm = output_gradient[2 * row];
  const float of_logit = output_gradient[2 * row + 1];
  const std::size_t label = index_in_shard(labels[row], first, columns);
  each_pack<T, PerBlock, N>(x, columns, [&](auto size, std::size_t column) {
    constexpr int count = decltype(size)::value;
    Values<count> v = load<count>(x + column);
    for (int k = 0; k < count; ++k) {
      v[k] = of_logarithm * expf(v[k] - logarithm);
      if (column + static_cast<unsigned>(k) == label) v[k] += of_logit;
    }
    store(input_gradient + row * columns + column, v);
  });
}

/// codelets/cpu/partial_cross_entropy.cpp on a GPU.
template <class T>
class PartialCrossEntropy final : public CudaLayer {
 public:
  explicit PartialCrossEntropy(const LayerSpec& spec)
      : rows_(spec.rows),
        columns_(spec.columns),
        first_(static_cast<std::size_t>(option(spec, "first", 0))) {}

  void forward(const Context& on, ConstMemory /*parameters*/, ConstMemory input, Memory output, Memory stash,
               std::span<float> /*scratch*/) const noexcept override {
    keep_input(on, "partial_cross_entropy F", input, stash, rows_ * columns_ * sizeof(T));
    const T* x = input.as<T>();
    float* logarithms = floats_behind<T>(stash, rows_ * columns_);
    with_teams<T>(rows_, columns_, pack_aligned(x), [&](auto per_block, auto size, const Grid& grid) {
      launch(on, "partial_cross_entropy F", grid, forward_rows<T, per_block, size>, rows_, columns_, first_,
             x, static_cast<const float*>(logarithms + rows_), logarithms, output.as<float>());
    });
  }

  void backward_input(const Context& on, ConstMemory /*parameters*/, ConstMemory stash,
                      ConstMemory output_gradient, Memory input_gradient,
                      std::span<float> /*scratch*/) const noexcept override {
    const T* x = stash.as<T>();
    T* dx = input_gradient.as<T>();
    const float* logarithms = floats_behind<T>(stash, rows_ * columns_);
    with_teams<T>(rows_, columns_, pack_aligned(x, dx), [&](auto per_block, auto size, const Grid& grid) {
      launch(on, "partial_cross_entropy B", grid, backward_rows<T, per_block, size>, rows_, columns_, first_,
             x, logarithms + rows_, logarithms, output_gradient.as<float>(), dx);
    });
  }

 private:
  std::size_t rows_;
  std::size_t columns_;
  std::size_t first_;
};

const bool registered =
    register_cuda_layer("partial_cross_entropy", [](const LayerSpec& spec, Precision precision) {
      return make_for<CudaLayer, PartialCrossEntropy>(precision, spec);
    });

}  // namespace
}  // namespace starpipe::model::cuda
