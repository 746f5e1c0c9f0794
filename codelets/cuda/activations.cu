// SPDX-License-Identifier: Apache-2.0
// codelets/cpu/activations.cpp on a GPU.
#include "codelets/cuda/kernels/element.hpp"
#include "codelets/cuda/kernels/for_each.cuh"
#include "codelets/cuda/kernels/rows.cuh"
#include "starpipe/model/cuda_layer.hpp"

namespace starpipe::model::cuda {
namespace {

__device__ float logistic(float x) { return 1.0f / (1.0f + expf(-x)); }

constexpr float gelu_scale = 0.7978845608028654f;  // sqrt(2 / pi)
constexpr float gelu_cubic = 0.044715f;

/// Returns (1 + tanh(u)) / 2 with u = gelu_scale * (x + gelu_cubic x^3), computed as the logistic function of
/// 2u.
__device__ float gelu_gate(float x) { return logistic(2.0f * gelu_scale * (x + gelu_cubic * x * x * x)); }

__device__ float gelu(float x) { return x * gelu_gate(x); }

/// Returns the derivative of gelu at x.
__device__ float gelu_slope(float x) {
  const float g = gelu_gate(x);
  // x is clamped for the second term: that term is 0 long before |x| = 16, but x^3 would overflow to
  // infinity.
  const float z = fminf(fmaxf(x, -16.0f), 16.0f);
  const float slope = 2.0f * gelu_scale * (1.0f + 3.0f * gelu_cubic * z * z);  // d(2u)/dx
  return g + z * g * (1.0f - g) * slope;
}

struct GeluForward {
  __device__ void operator()(float x, float& y) const { y = gelu(x); }
};
struct GeluBackward {
  __device__ void operator()(float x, float dy, float& dx) const { dx = dy * gelu_slope(x); }
};

template <class T>
class Gelu final : public CudaLayer {
 public:
  using CudaLayer::CudaLayer;

  void forward(const Context& on, const Forward& pass) const noexcept override {
    keep_input(on, "gelu F", pass.input, pass.stash, rows_ * columns_ * sizeof(T));
    for_each_element<T>(on, "gelu F", rows_ * columns_, GeluForward(), pass.input.as<T>(),
                        Out{pass.output.as<T>()});
  }

  void backward_input(const Context& on, const Backward& pass) const noexcept override {
    for_each_element<T>(on, "gelu B", rows_ * columns_, GeluBackward(), pass.stash.as<T>(),
                        pass.output_gradient.as<T>(), Out{pass.input_gradient.as<T>()});
  }
};

/// Returns the gate, but at least -80, as on the CPU: silu and its slope are below 1e-32 there. NaN stays
/// NaN.
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

template <class T>
class Swiglu final : public CudaLayer {
 public:
  using CudaLayer::CudaLayer;

  void forward(const Context& on, const Forward& pass) const noexcept override {
    keep_input(on, "swiglu F", pass.input, pass.stash, rows_ * columns_ * sizeof(T));
    const T* x = pass.input.as<T>();
    T* y = pass.output.as<T>();
    divide_rows<T>(rows_, columns_ / 2, pack_aligned(x, y), [&](auto columns, const Grid& grid) {
      launch(on, "swiglu F", grid, forward_rows<T, decltype(columns)>, rows_, columns, x, y);
    });
  }

  void backward_input(const Context& on, const Backward& pass) const noexcept override {
    const T* x = pass.stash.as<T>();
    const T* dy = pass.output_gradient.as<T>();
    T* dx = pass.input_gradient.as<T>();
    divide_rows<T>(rows_, columns_ / 2, pack_aligned(x, dy, dx), [&](auto columns, const Grid& grid) {
      launch(on, "swiglu B", grid, backward_rows<T, decltype(columns)>, rows_, columns, x, dy, dx);
    });
  }
};

const bool registered[] = {register_implementation<Gelu>("gelu"), register_implementation<Swiglu>("swiglu")};

}  // namespace
}  // namespace starpipe::model::cuda
