// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "codelets/cpu/math.hpp"
#include "model/full_width.hpp"
#include "starpipe/model/layer.hpp"

namespace starpipe::model {
namespace {

using cpu::sum_of;

/// Normalization over the columns: y = xhat * weight + bias.
///   LayerNorm (torch.nn.LayerNorm): xhat = (x - mean(x)) / sqrt(variance(x) + 1e-5)
///   RMSNorm (Zhang and Sennrich, arXiv 1910.07467): xhat = x / sqrt(mean(x^2) + epsilon), without a bias
/// So RMSNorm is a LayerNorm that is not centered. Option of RMSNorm: epsilon. The stash holds xhat, then for
/// each row the factor 1 / sqrt(...).
template <bool Centered>
class Normalization final : public Layer {
 public:
  explicit Normalization(const LayerSpec& spec) : Layer(spec) {
    if (Centered) {
      check_options(spec, {});
    } else {
      check_options(spec, {"epsilon"});
      epsilon_ = static_cast<float>(option(spec, "epsilon", 0));
    }
  }

  std::size_t stash_size() const override { return rows_ * columns_ + rows_; }
  std::size_t statistics_size() const override { return rows_; }
  double flops() const override {
    return (Centered ? 8.0 : 4.0) * static_cast<double>(rows_) * static_cast<double>(columns_);
  }

  std::vector<Parameter> parameters() const override {
    std::vector<Parameter> result = {{name_ + ".weight", {columns_}, 0, 1}};
    if (Centered) result.push_back({name_ + ".bias", {columns_}, 0, 0});
    return result;
  }

  void forward(const Forward& pass) const noexcept override {
    const float* weight = pass.parameters.data();
    const float* bias = weight + columns_;
    const float n = static_cast<float>(columns_);
    at_full_width([&] {
      for (std::size_t r = 0; r < rows_; ++r) {
        const float* x = pass.input.data() + r * columns_;
        float* y = pass.output.data() + r * columns_;
        float* xhat = pass.stash.data() + r * columns_;
        float mean = 0;
        if constexpr (Centered) mean = sum_of(columns_, [x](std::size_t c) { return x[c]; }) / n;
        const float square =
            sum_of(columns_, [x, mean](std::size_t c) { return (x[c] - mean) * (x[c] - mean); }) / n;
        const float scale = 1.0f / std::sqrt(square + epsilon_);
        pass.stash[rows_ * columns_ + r] = scale;
        for (std::size_t c = 0; c < columns_; ++c) {
          xhat[c] = (x[c] - mean) * scale;
          y[c] = Centered ? xhat[c] * weight[c] + bias[c] : xhat[c] * weight[c];
        }
      }
    });
  }

  void backward_input(const Backward& pass) const noexcept override {
    const float* weight = pass.parameters.data();
    const float n = static_cast<float>(columns_);
    at_full_width([&] {
      for (std::size_t r = 0; r < rows_; ++r) {
        const float* xhat = pass.stash.data() + r * columns_;
        const float* dy = pass.output_gradient.data() + r * columns_;
        float* dx = pass.input_gradient.data() + r * columns_;
        const float scale = pass.stash[rows_ * columns_ + r];
        float mean = 0;
        if constexpr (Centered) mean = sum_of(columns_, [=](std::size_t c) { return dy[c] * weight[c]; }) / n;
        const float slope = sum_of(columns_, [=](std::size_t c) { return dy[c] * weight[c] * xhat[c]; }) / n;
        for (std::size_t c = 0; c < columns_; ++c) {
          dx[c] = scale * (dy[c] * weight[c] - mean - xhat[c] * slope);
        }
      }
    });
  }

  void backward_weights(const Weights& pass) const noexcept override {
    float* dweight = pass.parameter_gradient.data();
    float* dbias = dweight + columns_;
    at_full_width([&] {
      for (std::size_t r = 0; r < rows_; ++r) {
        const float* xhat = pass.stash.data() + r * columns_;
        const float* dy = pass.output_gradient.data() + r * columns_;
        for (std::size_t c = 0; c < columns_; ++c) dweight[c] += dy[c] * xhat[c];
        for (std::size_t c = 0; Centered && c < columns_; ++c) dbias[c] += dy[c];
      }
    });
  }

 private:
  float epsilon_ = 1e-5f;
};

const bool registered[] = {register_layer<Normalization<true>>("layernorm"),
                           register_layer<Normalization<false>>("rmsnorm")};

}  // namespace
}  // namespace starpipe::model
