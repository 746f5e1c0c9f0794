// SPDX-License-Identifier: Apache-2.0
#include "codelets/cuda/kernels.cuh"
#include "starpipe/model/cuda_twin.hpp"

namespace starpipe::model::cuda {
namespace {

constexpr unsigned kRowsPerBlock = kThreads / kWarp;  // one warp a row

/// The row of this thread's warp.
__device__ std::size_t row_of_warp() { return std::size_t{blockIdx.x} * kRowsPerBlock + threadIdx.x / kWarp; }

template <class T>
__global__ void forward_rows(std::size_t rows, std::size_t columns, const T* parameters, const T* input,
                             T* output, T* xhat, float* scales) {
  constexpr float kEpsilon = 1e-5f;
  const std::size_t row = row_of_warp();
  const std::size_t lane = threadIdx.x % kWarp;
  if (row >= rows) return;
  const T* x = input + row * columns;
  const float n = static_cast<float>(columns);
  float sum = 0;
  for (std::size_t c = lane; c < columns; c += kWarp) sum += static_cast<float>(x[c]);
  const float mean = warp_sum(sum) / n;
  float squares = 0;
  for (std::size_t c = lane; c < columns; c += kWarp) {
    const float off = static_cast<float>(x[c]) - mean;
    squares += off * off;
  }
  const float scale = 1.0f / sqrtf(warp_sum(squares) / n + kEpsilon);
  if (lane == 0) scales[row] = scale;
  for (std::size_t c = lane; c < columns; c += kWarp) {
    const float normal = (static_cast<float>(x[c]) - mean) * scale;
    xhat[row * columns + c] = static_cast<T>(normal);
    output[row * columns + c] = static_cast<T>(normal * static_cast<float>(parameters[c]) +
                                               static_cast<float>(parameters[columns + c]));
  }
}

template <class T>
__global__ void backward_rows(std::size_t rows, std::size_t columns, const T* weight, const T* xhat,
                              const float* scales, const T* output_gradient, T* input_gradient) {
  const std::size_t row = row_of_warp();
  const std::size_t lane = threadIdx.x % kWarp;
  if (row >= rows) return;
  const T* normal = xhat + row * columns;
  const T* dy = output_gradient + row * columns;
  const float n = static_cast<float>(columns);
  float sum = 0;
  float slope_sum = 0;
  for (std::size_t c = lane; c < columns; c += kWarp) {
    const float g = static_cast<float>(dy[c]) * static_cast<float>(weight[c]);
    sum += g;
    slope_sum += g * static_cast<float>(normal[c]);
  }
  const float mean = warp_sum(sum) / n;
  const float slope = warp_sum(slope_sum) / n;
  for (std::size_t c = lane; c < columns; c += kWarp) {
    const float g = static_cast<float>(dy[c]) * static_cast<float>(weight[c]);
    input_gradient[row * columns + c] =
        static_cast<T>(scales[row] * (g - mean - static_cast<float>(normal[c]) * slope));
  }
}

/// Of the weight's gradient in the first half of the columns, of the bias's in the second.
template <class T>
struct GradientTerm {
  const T* xhat;
  const T* dy;
  std::size_t columns;
  __device__ float operator()(std::size_t row, std::size_t column) const {
    if (column >= columns) return static_cast<float>(dy[row * columns + column - columns]);
    const std::size_t i = row * columns + column;
    return static_cast<float>(dy[i]) * static_cast<float>(xhat[i]);
  }
};

/// codelets/cpu/layernorm.cpp on a GPU.
template <class T>
class LayerNorm final : public CudaLayer {
 public:
  explicit LayerNorm(const LayerSpec& spec) : rows_(spec.rows), columns_(spec.columns) {}

  std::size_t scratch_size() const override { return sum_rows_scratch(2 * columns_); }

  void forward(const Context& on, ConstMemory parameters, ConstMemory input, Memory output, Memory stash,
               std::span<float> /*scratch*/) const noexcept override {
    launch(on, "layernorm F", grid(), forward_rows<T>, rows_, columns_, parameters.as<T>(), input.as<T>(),
           output.as<T>(), stash.as<T>(), floats_behind<T>(stash, rows_ * columns_));
  }

  void backward_input(const Context& on, ConstMemory parameters, ConstMemory stash,
                      ConstMemory output_gradient, Memory input_gradient,
                      std::span<float> /*scratch*/) const noexcept override {
    launch(on, "layernorm B", grid(), backward_rows<T>, rows_, columns_, parameters.as<T>(), stash.as<T>(),
           floats_behind<T>(stash, rows_ * columns_), output_gradient.as<T>(), input_gradient.as<T>());
  }

  void backward_weights(const Context& on, ConstMemory stash, ConstMemory output_gradient,
                        std::span<float> parameter_gradient,
                        std::span<float> scratch) const noexcept override {
    sum_rows(on, "layernorm W", rows_, 2 * columns_,
             GradientTerm<T>{stash.as<T>(), output_gradient.as<T>(), columns_}, parameter_gradient.data(),
             scratch);
  }

 private:
  Grid grid() const noexcept {
    return {dim3(static_cast<unsigned>(parts(rows_, kRowsPerBlock))), dim3(kThreads)};
  }

  std::size_t rows_;
  std::size_t columns_;
};

const bool registered = register_cuda_layer("layernorm", [](const LayerSpec& spec, Precision precision) {
  return make_twin<CudaLayer, LayerNorm>(precision, spec);
});

}  // namespace
}  // namespace starpipe::model::cuda
