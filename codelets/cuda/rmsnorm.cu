// SPDX-License-Identifier: Apache-2.0
#include "codelets/cuda/kernels/column_sums.cuh"
#include "codelets/cuda/kernels/element.hpp"
#include "codelets/cuda/kernels/rows.cuh"
#include "starpipe/model/cuda_layer.hpp"

namespace starpipe::model::cuda {
namespace {

/// One team a row: y = xhat * weight with xhat = x * scale, and scales[row] = scale = 1 / sqrt(mean(x^2) +
/// epsilon).
template <class T, class Columns>
__global__ void __launch_bounds__(Columns::block_threads, Columns::min_blocks)
    forward_rows(std::size_t rows, Columns columns, float epsilon, const T* __restrict__ weight,
                 const T* __restrict__ input, T* __restrict__ output, T* __restrict__ xhat,
                 float* __restrict__ scales) {
  constexpr int N = Columns::N;
  const std::size_t row = columns.row();
  if (row >= rows) return;
  const std::size_t start = row * columns.count;
  const Row<T, Columns> x(input + start, columns);
  float squares = 0;
  columns.each([&](unsigned p, unsigned column) {
    const Values<N> v = x.at(p, column);
    for (int k = 0; k < N; ++k) squares += v[k] * v[k];
  });
  const float scale = 1.0f / sqrtf(columns.sum(squares) / static_cast<float>(columns.count) + epsilon);
  if (columns.lane() == 0) scales[row] = scale;
  columns.each([&](unsigned p, unsigned column) {
    const Values<N> w = load<N>(weight + column);
    Values<N> v = x.at(p, column);
    for (int k = 0; k < N; ++k) v[k] *= scale;
    store(xhat + start + column, v);
    for (int k = 0; k < N; ++k) v[k] *= w[k];
    store(output + start + column, v);
  });
}

/// One team a row: dx = scale * (g - xhat * mean(g * xhat)) with g = dy * weight.
template <class T, class Columns>
__global__ void __launch_bounds__(Columns::block_threads, Columns::min_blocks)
    backward_rows(std::size_t rows, Columns columns, const T* __restrict__ weight, const T* __restrict__ xhat,
                  const float* __restrict__ scales, const T* __restrict__ output_gradient,
                  T* __restrict__ input_gradient) {
  constexpr int N = Columns::N;
  const std::size_t row = columns.row();
  if (row >= rows) return;
  const std::size_t start = row * columns.count;
  const Row<T, Columns> normal(xhat + start, columns);
  const Row<T, Columns> dy(output_gradient + start, columns);
  const float scale = scales[row];
  float sum = 0;
  columns.each([&](unsigned p, unsigned column) {
    const Values<N> w = load<N>(weight + column);
    const Values<N> d = dy.at(p, column);
    const Values<N> v = normal.at(p, column);
    for (int k = 0; k < N; ++k) sum += d[k] * w[k] * v[k];
  });
  const float slope = columns.sum(sum) / static_cast<float>(columns.count);
  columns.each([&](unsigned p, unsigned column) {
    const Values<N> w = load<N>(weight + column);
    const Values<N> v = normal.at(p, column);
    Values<N> d = dy.at(p, column);
    for (int k = 0; k < N; ++k) d[k] = scale * (d[k] * w[k] - v[k] * slope);
    store(input_gradient + start + column, d);
  });
}

/// The terms of the weight's gradient, dy * xhat.
template <class T>
struct GradientTerms {
  static constexpr int sums_per_column = 1;
  static constexpr int pack_size = cuda::pack_size<T>;
  const T* xhat;
  const T* dy;
  [[nodiscard]] bool pack_aligned() const { return cuda::pack_aligned(xhat, dy); }
  template <int N>
  struct Loaded {
    Pack<T, N> xhat;
    Pack<T, N> dy;
  };
  template <int N>
  __device__ Loaded<N> load(std::size_t i) const {
    return {load_pack<N>(xhat + i), load_pack<N>(dy + i)};
  }
  template <int N>
  __device__ static void add(const Loaded<N>& loaded, Values<N> (&sums)[sums_per_column]) {
    const Values<N> v = floats(loaded.xhat);
    const Values<N> d = floats(loaded.dy);
    for (int k = 0; k < N; ++k) sums[0][k] += d[k] * v[k];
  }
};

/// codelets/cpu/rmsnorm.cpp on a GPU.
template <class T>
class RmsNorm final : public CudaLayer {
 public:
  explicit RmsNorm(const LayerSpec& spec)
      : rows_(spec.rows), columns_(spec.columns), epsilon_(static_cast<float>(option(spec, "epsilon", 0))) {}

  std::size_t scratch_size() const override { return column_sums_scratch(columns_); }

  void forward(const Context& on, ConstMemory parameters, ConstMemory input, Memory output, Memory stash,
               std::span<float> /*scratch*/) const noexcept override {
    const T* weight = parameters.as<T>();
    const T* x = input.as<T>();
    T* y = output.as<T>();
    T* xhat = stash.as<T>();
    const bool aligned = pack_aligned(weight, x, y, xhat);
    divide_rows<T>(rows_, columns_, aligned, [&](auto columns, const Grid& grid) {
      launch(on, "rmsnorm F", grid, forward_rows<T, decltype(columns)>, rows_, columns, epsilon_, weight, x,
             y, xhat, floats_behind<T>(stash, rows_ * columns_));
    });
  }

  void backward_input(const Context& on, ConstMemory parameters, ConstMemory stash,
                      ConstMemory output_gradient, Memory input_gradient,
                      std::span<float> /*scratch*/) const noexcept override {
    const T* weight = parameters.as<T>();
    const T* xhat = stash.as<T>();
    const T* dy = output_gradient.as<T>();
    T* dx = input_gradient.as<T>();
    const bool aligned = pack_aligned(weight, xhat, dy, dx);
    divide_rows<T>(rows_, columns_, aligned, [&](auto columns, const Grid& grid) {
      launch(on, "rmsnorm B", grid, backward_rows<T, decltype(columns)>, rows_, columns, weight, xhat,
             floats_behind<T>(stash, rows_ * columns_), dy, dx);
    });
  }

  void backward_weights(const Context& on, ConstMemory stash, ConstMemory output_gradient,
                        std::span<float> parameter_gradient,
                        std::span<float> scratch) const noexcept override {
    add_column_sums(on, "rmsnorm W", rows_, columns_,
                    GradientTerms<T>{stash.as<T>(), output_gradient.as<T>()}, parameter_gradient.data(),
                    scratch);
  }

 private:
  std::size_t rows_;
  std::size_t columns_;
  float epsilon_;
};

const bool registered = register_cuda_layer("rmsnorm", [](const LayerSpec& spec, Precision precision) {
  return make_for<CudaLayer, RmsNorm>(precision, spec);
});

}  // namespace
}  // namespace starpipe::model::cuda
