// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <optional>

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
    normalize(pass.input.data(), pass.parameters.data(), pass.output.data(), pass.stash.data(),
              pass.stash.data() + rows_ * columns_);
  }
  void forward_bf16(const DevicePasses::Forward& pass) const noexcept override {
    normalize(pass.input.as<Bf16>(), pass.parameters.as<Bf16>(), pass.output.as<Bf16>(),
              pass.stash.as<Bf16>(), pass.stash.as<float>() + bf16_scales());
  }

  void backward_input(const Backward& pass) const noexcept override {
    slope(pass.stash.data(), pass.stash.data() + rows_ * columns_, pass.parameters.data(),
          pass.output_gradient.data(), pass.input_gradient.data());
  }
  void backward_input_bf16(const DevicePasses::Backward& pass) const noexcept override {
    slope(pass.stash.as<Bf16>(), pass.stash.as<float>() + bf16_scales(), pass.parameters.as<Bf16>(),
          pass.output_gradient.as<Bf16>(), pass.input_gradient.as<Bf16>());
  }

  void backward_weights(const Weights& pass) const noexcept override {
    add_gradient(pass.stash.data(), pass.output_gradient.data(), pass.parameter_gradient.data());
  }
  void backward_weights_bf16(const DevicePasses::Weights& pass) const noexcept override {
    add_gradient(pass.stash.as<Bf16>(), pass.output_gradient.as<Bf16>(), pass.parameter_gradient.data());
  }

 private:
  std::optional<std::size_t> prepare_bf16() override { return 0; }
  /// Returns the word of a bf16 stash at which the factors begin.
  std::size_t bf16_scales() const { return words(Precision::bf16, rows_ * columns_); }

  template <class Number>
  void normalize(const Number* input, const Number* parameters, Number* output, Number* stash,
                 float* scales) const noexcept {
    at_full_width([&] {
      const std::size_t columns = columns_;
      const auto n = static_cast<float>(columns);
      const Number* __restrict weight = parameters;
      const Number* __restrict bias = weight + columns;
      for (std::size_t r = 0; r < rows_; ++r) {
        const Number* x = input + r * columns;
        Number* __restrict y = output + r * columns;
        Number* __restrict xhat = stash + r * columns;
        float mean = 0;
        if constexpr (Centered) mean = sum_of(columns, [x](std::size_t c) { return x[c]; }) / n;
        const float square =
            sum_of(columns, [x, mean](std::size_t c) { return (x[c] - mean) * (x[c] - mean); }) / n;
        const float scale = 1.0f / std::sqrt(square + epsilon_);
        scales[r] = scale;
        for (std::size_t c = 0; c < columns; ++c) {
          const float normal = (x[c] - mean) * scale;
          xhat[c] = normal;
          y[c] = Centered ? normal * weight[c] + bias[c] : normal * weight[c];
        }
      }
    });
  }

  template <class Number>
  void slope(const Number* stash, const float* scales, const Number* parameters,
             const Number* output_gradient, Number* input_gradient) const noexcept {
    at_full_width([&] {
      const std::size_t columns = columns_;
      const auto n = static_cast<float>(columns);
      const Number* __restrict weight = parameters;
      for (std::size_t r = 0; r < rows_; ++r) {
        const Number* xhat = stash + r * columns;
        const Number* dy = output_gradient + r * columns;
        Number* __restrict dx = input_gradient + r * columns;
        const float scale = scales[r];
        float mean = 0;
        if constexpr (Centered) mean = sum_of(columns, [=](std::size_t c) { return dy[c] * weight[c]; }) / n;
        const float slope = sum_of(columns, [=](std::size_t c) { return dy[c] * weight[c] * xhat[c]; }) / n;
        for (std::size_t c = 0; c < columns; ++c) {
          dx[c] = scale * (dy[c] * weight[c] - mean - xhat[c] * slope);
        }
      }
    });
  }

  template <class Number>
  void add_gradient(const Number* stash, const Number* output_gradient, float* gradient) const noexcept {
    at_full_width([&] {
      const std::size_t columns = columns_;
      float* __restrict dweight = gradient;
      float* __restrict dbias = gradient + columns;
      for (std::size_t r = 0; r < rows_; ++r) {
        const Number* __restrict xhat = stash + r * columns;
        const Number* __restrict dy = output_gradient + r * columns;
        for (std::size_t c = 0; c < columns; ++c) dweight[c] += dy[c] * xhat[c];
        for (std::size_t c = 0; Centered && c < columns; ++c) dbias[c] += dy[c];
      }
    });
  }

  float epsilon_ = 1e-5f;
};

const bool registered[] = {register_layer<Normalization<true>>("layernorm"),
                           register_layer<Normalization<false>>("rmsnorm")};

}  // namespace
}  // namespace starpipe::model
