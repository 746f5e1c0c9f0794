// SPDX-License-Identifier: Apache-2.0
#include "codelets/cuda/backend.hpp"

#include "codelets/cuda/kernels.cuh"
#include "codelets/cuda/update.hpp"
#include "starpipe/model/cuda_twin.hpp"

namespace starpipe::model::cuda {
namespace {

struct Sum {
  const float* a;
  const float* b;
  float* sum;
  __device__ void operator()(std::size_t i) const { sum[i] = a[i] + b[i]; }
};

}  // namespace

void StreamBackend::zero(std::span<float> values) const noexcept {
  check(cudaMemsetAsync(values.data(), 0, values.size_bytes(), on_.stream), "zero");
}

void StreamBackend::copy(std::span<const float> from, std::span<float> to) const noexcept {
  check(cudaMemcpyAsync(to.data(), from.data(), from.size_bytes(), cudaMemcpyDeviceToDevice, on_.stream),
        "copy");
}

void StreamBackend::add(std::span<const float> a, std::span<const float> b,
                        std::span<float> sum) const noexcept {
  for_each(on_, "add", sum.size(), Sum{a.data(), b.data(), sum.data()});
}

void StreamBackend::copy_columns(const float* from, std::size_t from_stride, float* to, std::size_t to_stride,
                                 std::size_t columns, std::size_t rows) const noexcept {
  check(cudaMemcpy2DAsync(to, to_stride * sizeof(float), from, from_stride * sizeof(float),
                          columns * sizeof(float), rows, cudaMemcpyDeviceToDevice, on_.stream),
        "copy of columns");
}

void StreamBackend::forward(const Layer& layer, std::span<const float> parameters,
                            std::span<const float> input, std::span<float> output, std::span<float> stash,
                            std::span<float> scratch) const noexcept {
  layer.cuda()->forward(on_, parameters, input, output, stash, scratch);
}

void StreamBackend::backward_input(const Layer& layer, std::span<const float> parameters,
                                   std::span<const float> stash, std::span<const float> output_gradient,
                                   std::span<float> input_gradient, std::span<float> scratch) const noexcept {
  layer.cuda()->backward_input(on_, parameters, stash, output_gradient, input_gradient, scratch);
}

void StreamBackend::backward_weights(const Layer& layer, std::span<const float> stash,
                                     std::span<const float> output_gradient,
                                     std::span<float> parameter_gradient,
                                     std::span<float> scratch) const noexcept {
  layer.cuda()->backward_weights(on_, stash, output_gradient, parameter_gradient, scratch);
}

void StreamBackend::forward(const Loss& loss, std::span<const float> input, std::span<const float> target,
                            std::span<float> stash, std::span<float> mean,
                            std::span<float> scratch) const noexcept {
  loss.cuda()->forward(on_, input, target, stash, mean, scratch);
}

void StreamBackend::backward_input(const Loss& loss, std::span<const float> stash, float scale,
                                   std::span<float> input_gradient) const noexcept {
  loss.cuda()->backward_input(on_, stash, scale, input_gradient);
}

void StreamBackend::update(const OptimizerConfig& config, int step, std::span<const float> gradient,
                           std::span<float> parameters, std::span<float> state) const noexcept {
  cuda::update(on_, config, step, gradient, parameters, state);
}

}  // namespace starpipe::model::cuda
