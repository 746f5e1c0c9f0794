// SPDX-License-Identifier: Apache-2.0
#include "codelets/cuda/kernels/arithmetic.hpp"
#include "codelets/cuda/kernels/device.hpp"
#include "codelets/cuda/kernels/element.hpp"
#include "codelets/cuda/kernels/rows.cuh"
#include "starpipe/model/cuda_layer.hpp"

namespace starpipe::model::cuda {
namespace {

/// The gate, but at least -80, as on the CPU: silu and its slope are below 1e-32 there. NaN stays NaN.
__device__ float clamped(float gate) { return gate < -80.0f ? -80.0f : gate; }

/// One team per row: y = silu(gate) * up. A row of `input` is the gates, then the ups.
template <class T, class Columns>
__global__ void __launch_bounds__(Columns::block_threads, Columns::min_blocks)
    forward_rows(std::size_t rows, Columns columns, const T* __restrict__ input, T* __restrict__ output) {
  constexpr int N = Columns::N;
  const std::size_t row = columns.row();
  if (row >= rows) return;
  const std::size_t start = row * columns.count;
  const Row<T, Columns> gates(input + 2 * start, columns);
  const Row<T, Columns> ups(input + 2 * start + columns.count, columns);
  columns.each([&](unsigned p, unsigned column) {
    const Values<N> up = ups.at(p, column);
    Values<N> y = gates.at(p, column);
    for (int k = 0; k < N; ++k) {
      const float g = clamped(y[k]);
      y[k] = g * logistic(g) * up[k];
    }
    store(output + start + column, y);
  });
}

/// One team per row: the gradients of the gates, then of the ups. It holds three rows in registers, so fewer
/// blocks than min_blocks fit a multiprocessor.
template <class T, class Columns>
__global__ void __launch_bounds__(Columns::block_threads)
    backward_rows(std::size_t rows, Columns columns, const T* __restrict__ input,
                  const T* __restrict__ output_gradient, T* __restrict__ input_gradient) {
  constexpr int N = Columns::N;
  const std::size_t row = columns.row();
  if (row >= rows) return;
  const std::size_t start = row * columns.count;
  const Row<T, Columns> gates(input + 2 * start, columns);
  const Row<T, Columns> ups(input + 2 * start + columns.count, columns);
  const Row<T, Columns> dys(output_gradient + start, columns);
  columns.each([&](unsigned p, unsigned column) {
    const Values<N> dy = dys.at(p, column);
    Values<N> gate = gates.at(p, column);
    Values<N> up = ups.at(p, column);
    for (int k = 0; k < N; ++k) {
      const float g = clamped(gate[k]);
      const float opening = logistic(g);
      gate[k] = dy[k] * up[k] * opening * (1.0f + g * (1.0f - opening));
      up[k] = dy[k] * g * opening;
    }
    store(input_gradient + 2 * start + column, gate);
    store(input_gradient + 2 * start + columns.count + column, up);
  });
}

/// codelets/cpu/swiglu.cpp on a GPU.
template <class T>
class Swiglu final : public CudaLayer {
 public:
  explicit Swiglu(const LayerSpec& spec) : rows_(spec.rows), columns_(spec.columns / 2) {}

  void forward(const Context& on, ConstMemory /*parameters*/, ConstMemory input, Memory output, Memory stash,
               FloatView /*scratch*/) const noexcept override {
    keep_input(on, "swiglu F", input, stash, rows_ * 2 * columns_ * sizeof(T));
    const T* x = input.as<T>();
    T* y = output.as<T>();
    divide_rows<T>(rows_, columns_, pack_aligned(x, y), [&](auto columns, const Grid& grid) {
      launch(on, "swiglu F", grid, forward_rows<T, decltype(columns)>, rows_, columns, x, y);
    });
  }

  void backward_input(const Context& on, ConstMemory /*parameters*/, ConstMemory stash,
                      ConstMemory output_gradient, Memory input_gradient,
                      FloatView /*scratch*/) const noexcept override {
    const T* x = stash.as<T>();
    const T* dy = output_gradient.as<T>();
    T* dx = input_gradient.as<T>();
    divide_rows<T>(rows_, columns_, pack_aligned(x, dy, dx), [&](auto columns, const Grid& grid) {
      launch(on, "swiglu B", grid, backward_rows<T, decltype(columns)>, rows_, columns, x, dy, dx);
    });
  }

 private:
  std::size_t rows_;
  std::size_t columns_;
};

const bool registered = register_implementation<Swiglu>("swiglu");

}  // namespace
}  // namespace starpipe::model::cuda
