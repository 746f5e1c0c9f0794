// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "codelets/cpu/math.hpp"
#include "starpipe/model/layer.hpp"

namespace starpipe::model {
namespace {

using cpu::sum_of;

/// torch.nn.RMSNorm over the columns (Zhang and Sennrich, arXiv 1910.07467): y = xhat * weight with xhat = x
/// / sqrt(mean(x^2) + epsilon). The stash holds xhat and, for each row, 1 / sqrt(mean(x^2) + epsilon).
/// Option: epsilon.
class RmsNorm final : public Layer {
 public:
  explicit RmsNorm(const LayerSpec& spec) : name_(spec.name), rows_(spec.rows), columns_(spec.columns) {
    check_options(spec, {"epsilon"});
    epsilon_ = static_cast<float>(option(spec, "epsilon", 0));
  }

  std::size_t rows() const override { return rows_; }
  std::size_t input_columns() const override { return columns_; }
  std::size_t output_columns() const override { return columns_; }
  std::size_t stash_size() const override { return rows_ * columns_ + rows_; }
  std::size_t statistics_size() const override { return rows_; }
  double flops() const override { return 4.0 * static_cast<double>(rows_) * static_cast<double>(columns_); }

  std::vector<Parameter> parameters() const override { return {{name_ + ".weight", {columns_}, 0, 1}}; }

  void forward(std::span<const float> parameters, std::span<const float> input, std::span<float> output,
               std::span<float> stash, std::span<float> /*scratch*/) const noexcept override {
    const float* weight = parameters.data();
    const float n = static_cast<float>(columns_);
    for (std::size_t r = 0; r < rows_; ++r) {
      const float* x = input.data() + r * columns_;
      float* y = output.data() + r * columns_;
      float* xhat = stash.data() + r * columns_;
      const float square = sum_of(columns_, [x](std::size_t c) { return x[c] * x[c]; }) / n;
      const float scale = 1.0f / std::sqrt(square + epsilon_);
      stash[rows_ * columns_ + r] = scale;
      for (std::size_t c = 0; c < columns_; ++c) {
        xhat[c] = x[c] * scale;
        y[c] = xhat[c] * weight[c];
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
      const float slope = sum_of(columns_, [=](std::size_t c) { return dy[c] * weight[c] * xhat[c]; }) / n;
      for (std::size_t c = 0; c < columns_; ++c) dx[c] = scale * (dy[c] * weight[c] - xhat[c] * slope);
    }
  }

  void backward_weights(std::span<const float> stash, std::span<const float> output_gradient,
                        std::span<float> parameter_gradient,
                        std::span<float> /*scratch*/) const noexcept override {
    float* dweight = parameter_gradient.data();
    for (std::size_t r = 0; r < rows_; ++r) {
      const float* xhat = stash.data() + r * columns_;
      const float* dy = output_gradient.data() + r * columns_;
      for (std::size_t c = 0; c < columns_; ++c) dweight[c] += dy[c] * xhat[c];
    }
  }

 private:
  std::string name_;
  std::size_t rows_;
  std::size_t columns_;
  float epsilon_ = 0;
};

const bool registered =
    register_layer("rmsnorm", [](const LayerSpec& spec) { return std::make_unique<RmsNorm>(spec); });

}  // namespace
}  // namespace starpipe::model
