// SPDX-License-Identifier: Apache-2.0
#include "codelets/cuda/kernels/column_sums.cuh"
#include "codelets/cuda/kernels/element.hpp"
#include "codelets/cuda/kernels/rows.cuh"
#include "starpipe/model/cuda_layer.hpp"

namespace starpipe::model::cuda {
namespace {

// LayerNorm is Centered, RMSNorm is not: its mean counts as 0, and it has no bias.

/// One team per row: y = xhat * weight + bias with xhat = (x - mean) * scale, and scales[row] = scale = 1 /
/// sqrt(mean((x - mean)^2) + epsilon). `parameters`: the weight, then the bias.
template <bool Centered, class T, class Columns>
__global__ void __launch_bounds__(Columns::block_threads, Columns::min_blocks)
    forward_rows(std::size_t rows, Columns columns, float epsilon, const T* __restrict__ parameters,
                 const T* __restrict__ input, T* __restrict__ output, T* __restrict__ xhat,
                 float* __restrict__ scales) {
  constexpr int N = Columns::N;
  const std::size_t row = columns.row();
  if (row >= rows) return;
  const std::size_t start = row * columns.count;
  const float n = static_cast<float>(columns.count);
  const Row<T, Columns> x(input + start, columns);
  float mean = 0;
  if constexpr (Centered) {
    float sum = 0;
    columns.each([&](unsigned p, unsigned column) {
      const Values<N> v = x.at(p, column);
      for (int k = 0; k < N; ++k) sum += v[k];
    });
    mean = columns.sum(sum) / n;
  }
  float squares = 0;
  columns.each([&](unsigned p, unsigned column) {
    const Values<N> v = x.at(p, column);
    for (int k = 0; k < N; ++k) squares += (v[k] - mean) * (v[k] - mean);
  });
  const float scale = 1.0f / sqrtf(columns.sum(squares) / n + epsilon);
  if (columns.lane() == 0) scales[row] = scale;
  columns.each([&](unsigned p, unsigned column) {
    const Values<N> weight = load<N>(parameters + column);
    Values<N> bias = {};
    if constexpr (Centered) bias = load<N>(parameters + columns.count + column);
    Values<N> v = x.at(p, column);
    for (int k = 0; k < N; ++k) v[k] = (v[k] - mean) * scale;
    store(xhat + start + column, v);
    for (int k = 0; k < N; ++k) v[k] = Centered ? v[k] * weight[k] + bias[k] : v[k] * weight[k];
    store(output + start + column, v);
  });
}

/// One team per row: dx = scale * (g - mean(g) - xhat * mean(g * xhat)) with g = dy * weight.
template <bool Centered, class T, class Columns>
__global__ void __launch_bounds__(Columns::block_threads, Columns::min_blocks)
    backward_rows(std::size_t rows, Columns columns, const T* __restrict__ weight, const T* __restrict__ xhat,
                  const float* __restrict__ scales, const T* __restrict__ output_gradient,
                  T* __restrict__ input_gradient) {
  constexpr int N = Columns::N;
  const std::size_t row = columns.row();
  if (row >= rows) return;
  const std::size_t start = row * columns.count;
  const float n = static_cast<float>(columns.count);
  const Row<T, Columns> normal(xhat + start, columns);
  const Row<T, Columns> dy(output_gradient + start, columns);
  const float scale = scales[row];
  float sum = 0;
  float slope_sum = 0;
  columns.each([&](unsigned p, unsigned column) {
    const Values<N> w = load<N>(weight + column);
    const Values<N> d = dy.at(p, column);
    const Values<N> v = normal.at(p, column);
    for (int k = 0; k < N; ++k) {
      if constexpr (Centered) sum += d[k] * w[k];
      slope_sum += d[k] * w[k] * v[k];
    }
  });
  float mean = 0;
  if constexpr (Centered) mean = columns.sum(sum) / n;
  const float slope = columns.sum(slope_sum) / n;
  columns.each([&](unsigned p, unsigned column) {
    const Values<N> w = load<N>(weight + column);
    const Values<N> v = normal.at(p, column);
    Values<N> d = dy.at(p, column);
    for (int k = 0; k < N; ++k) d[k] = scale * (d[k] * w[k] - mean - v[k] * slope);
    store(input_gradient + start + column, d);
  });
}

/// The terms of the parameters' gradients, summed in one pass over the arrays: dy * xhat for the weight, dy
/// for the bias.
template <bool Centered, class T>
struct GradientTerms {
  static constexpr int sums_per_column = Centered ? 2 : 1;
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
    for (int k = 0; k < N; ++k) {
      sums[0][k] += d[k] * v[k];
      if constexpr (Centered) sums[1][k] += d[k];
    }
  }
};

/// codelets/cpu/normalization.cpp on a GPU.
template <bool Centered, class T>
class Normalization final : public CudaLayer {
 public:
  explicit Normalization(const LayerSpec& spec)
      : CudaLayer(spec), epsilon_(Centered ? 1e-5f : static_cast<float>(option(spec, "epsilon", 0))) {}

  std::size_t scratch_size() const override {
    return column_sums_scratch(GradientTerms<Centered, T>::sums_per_column * columns_);
  }

  void forward(const Context& on, const Forward& pass) const noexcept override {
    const T* weight = pass.parameters.as<T>();
    const T* x = pass.input.as<T>();
    T* y = pass.output.as<T>();
    T* xhat = pass.stash.as<T>();
    const bool aligned = pack_aligned(weight, x, y, xhat);
    divide_rows<T>(rows_, columns_, aligned, [&](auto columns, const Grid& grid) {
      launch(on, Centered ? "layernorm F" : "rmsnorm F", grid, forward_rows<Centered, T, decltype(columns)>,
             rows_, columns, epsilon_, weight, x, y, xhat, floats_behind<T>(pass.stash, rows_ * columns_));
    });
  }

  void backward_input(const Context& on, const Backward& pass) const noexcept override {
    const T* weight = pass.parameters.as<T>();
    const T* xhat = pass.stash.as<T>();
    const T* dy = pass.output_gradient.as<T>();
    T* dx = pass.input_gradient.as<T>();
    const bool aligned = pack_aligned(weight, xhat, dy, dx);
    divide_rows<T>(rows_, columns_, aligned, [&](auto columns, const Grid& grid) {
      launch(on, Centered ? "layernorm B" : "rmsnorm B", grid, backward_rows<Centered, T, decltype(columns)>,
             rows_, columns, weight, xhat, floats_behind<T>(pass.stash, rows_ * columns_), dy, dx);
    });
  }

  void backward_weights(const Context& on, const Weights& pass) const noexcept override {
    add_column_sums(on, Centered ? "layernorm W" : "rmsnorm W", rows_, columns_,
                    GradientTerms<Centered, T>{pass.stash.as<T>(), pass.output_gradient.as<T>()},
                    pass.parameter_gradient.data(), pass.scratch);
  }

 private:
  float epsilon_;
};

template <class T>
using LayerNorm = Normalization<true, T>;
template <class T>
using RmsNorm = Normalization<false, T>;

const bool registered[] = {register_implementation<LayerNorm>("layernorm"),
                           register_implementation<RmsNorm>("rmsnorm")};

}  // namespace
}  // namespace starpipe::model::cuda
