// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "codelets/cpu/math.hpp"
#include "starpipe/model/layer.hpp"

namespace starpipe::model {
namespace {

using cpu::sum_of;

/// torch.nn.LayerNorm over the columns, eps 1e-5: y = xhat * weight + bias with xhat = (x - mean) /
/// deviation. The stash holds xhat and, for each row, 1 / deviation. No options.
class LayerNorm final : public Layer {
 public:
  explicit LayerNorm(const LayerSpec& spec) : name_(spec.name), rows_(spec.rows), columns_(spec.columns) {
    check_options(spec, {});
  }

  std::size_t rows() const override { return rows_; }
  std::size_t input_columns() const override { return columns_; }
  std::size_t output_columns() const override { return columns_; }
  std::size_t stash_size() const override { return rows_ * columns_ + rows_; }
  std::size_t statistics_size() const override { return rows_; }
  double flops() const override { return 8.0 * static_cast<double>(rows_) * static_cast<double>(columns_); }

  std::vector<Parameter> parameters() const override {
    return {{name_ + ".weight", {columns_}, 0, 1}, {name_ + ".bias", {columns_}, 0, 0}};
  }

  void forward(std::span<const float> parameters, std::span<const float> input, std::span<float> output,
               std::span<float> stash, std::span<float> /*scratch*/) const noexcept override {
    constexpr float epsilon = 1e-5f;
    const float* weight = parameters.data();
    const float* bias = weight + columns_;
    const float n = static_cast<float>(columns_);
    for (std::size_t r = 0; r < rows_; ++r) {
      const float* x = input.data() + r * columns_;
      float* y = output.data() + r * columns_;
      float* xhat = stash.data() + r * columns_;
      const float mean = sum_of(columns_, [x](std::size_t c) { return x[c]; }) / n;
      const float variance =
          sum_of(columns_, [x, mean](std::size_t c) { return (x[c] - mean) * (x[c] - mean); }) / n;
      const float scale = 1.0f / std::sqrt(variance + epsilon);
      stash[rows_ * columns_ + r] = scale;
      for (std::size_t c = 0; c < columns_; ++c) {
        xhat[c] = (x[c] - mean) * scale;
        y[c] = xhat[c] * weight[c] + bias[c];
      }
    }
  }

  void backward_input(std::span<const float> parameters, std::span<const float> stash,
                      std::span<const float> output_gradient, std::span<float> input_gradient,
                      std::span<float> /*scratch*/) const noexcept override {
    const float* weight = parameters.data();
    const float n = static_cast<float>(columns_);
    for (std::size_t r = 0; r < rows_; ++r) {
      const float* xhat = stash.data() + r * columns_;
      const float* dy = output_gradient.data() + r * columns_;
      float* dx = input_gradient.data() + r * columns_;
      const float scale = stash[rows_ * columns_ + r];
      const float mean = sum_of(columns_, [=](std::size_t c) { return dy[c] * weight[c]; }) / n;
      const float slope = sum_of(columns_, [=](std::size_t c) { return dy[c] * weight[c] * xhat[c]; }) / n;
      for (std::size_t c = 0; c < columns_; ++c) {
        dx[c] = scale * (dy[c] * weight[c] - mean - xhat[c] * slope);
      }
    }
  }

  void backward_weights(std::span<const float> stash, std::span<const float> output_gradient,
                        std::span<float> parameter_gradient,
                        std::span<float> /*scratch*/) const noexcept override {
    float* dweight = parameter_gradient.data();
    float* dbias = dweight + columns_;
    for (std::size_t r = 0; r < rows_; ++r) {
      const float* xhat = stash.data() + r * columns_;
      const float* dy = output_gradient.data() + r * columns_;
      for (std::size_t c = 0; c < columns_; ++c) dweight[c] += dy[c] * xhat[c];
      for (std::size_t c = 0; c < columns_; ++c) dbias[c] += dy[c];
    }
  }

 private:
  std::string name_;
  std::size_t rows_;
  std::size_t columns_;
};

const bool registered =
    register_layer("layernorm", [](const LayerSpec& spec) { return std::make_unique<LayerNorm>(spec); });

}  // namespace
}  // namespace starpipe::model
