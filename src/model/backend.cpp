// SPDX-License-Identifier: Apache-2.0
#include "starpipe/model/backend.hpp"

#include <algorithm>
#include <cstring>

namespace starpipe::model {
namespace {

class CpuBackend final : public Backend {
 public:
  void zero(std::span<float> values) const noexcept override {
    std::fill(values.begin(), values.end(), 0.0f);
  }
  void copy(std::span<const float> from, std::span<float> to) const noexcept override {
    if (!from.empty()) std::memcpy(to.data(), from.data(), from.size_bytes());
  }
  void add(std::span<const float> a, std::span<const float> b, std::span<float> sum) const noexcept override {
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = a[i] + b[i];
  }
  void copy_columns(const float* from, std::size_t from_stride, float* to, std::size_t to_stride,
                    std::size_t columns, std::size_t rows) const noexcept override {
    for (std::size_t r = 0; r < rows; ++r) std::copy_n(from + r * from_stride, columns, to + r * to_stride);
  }

  void forward(const Layer& layer, std::span<const float> parameters, std::span<const float> input,
               std::span<float> output, std::span<float> stash,
               std::span<float> scratch) const noexcept override {
    layer.forward(parameters, input, output, stash, scratch);
  }
  void backward_input(const Layer& layer, std::span<const float> parameters, std::span<const float> stash,
                      std::span<const float> output_gradient, std::span<float> input_gradient,
                      std::span<float> scratch) const noexcept override {
    layer.backward_input(parameters, stash, output_gradient, input_gradient, scratch);
  }
  void backward_weights(const Layer& layer, std::span<const float> stash,
                        std::span<const float> output_gradient, std::span<float> parameter_gradient,
                        std::span<float> scratch) const noexcept override {
    layer.backward_weights(stash, output_gradient, parameter_gradient, scratch);
  }
  void forward(const Loss& loss, std::span<const float> input, std::span<const float> target,
               std::span<float> stash, std::span<float> mean,
               std::span<float> /*scratch*/) const noexcept override {
    const float value = loss.forward(input, target, stash);
    if (!mean.empty()) mean[0] = value;
  }
  void backward_input(const Loss& loss, std::span<const float> stash, float scale,
                      std::span<float> input_gradient) const noexcept override {
    loss.backward_input(stash, scale, input_gradient);
  }
  void update(const OptimizerConfig& config, int step, std::span<const float> gradient,
              std::span<float> parameters, std::span<float> state) const noexcept override {
    optimizer_step(config, step, gradient, parameters, state);
  }
};

}  // namespace

const Backend& cpu_backend() {
  static const CpuBackend backend;
  return backend;
}

}  // namespace starpipe::model
