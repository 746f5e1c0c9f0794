// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <stdexcept>

#include "codelets/cpu/math.hpp"
#include "starpipe/model/layer.hpp"

namespace starpipe::model {
namespace {

/// Adds a learned position to each row: y[r] = x[r] + weight[r mod context]. Options: context; deviation of
/// the start values (default 0). There is no stash. After an embedding without positions it computes what an
/// embedding with positions does, bit by bit in fp32.
class Positions final : public Layer {
 public:
  explicit Positions(const LayerSpec& spec) : name_(spec.name), rows_(spec.rows), columns_(spec.columns) {
    check_options(spec, {"context"}, {"deviation"});
    context_ = size_option(spec, "context");
    deviation_ = option(spec, "deviation", 0);
    if (rows_ % context_ != 0) {
      throw std::invalid_argument("positions " + name_ + ": rows are not whole sequences");
    }
  }

  std::size_t rows() const override { return rows_; }
  std::size_t input_columns() const override { return columns_; }
  std::size_t output_columns() const override { return columns_; }
  std::size_t stash_size() const override { return 0; }
  double flops() const override { return static_cast<double>(rows_) * static_cast<double>(columns_); }
  std::vector<Parameter> parameters() const override {
    return {{name_ + ".weight", {context_, columns_}, deviation_, 0}};
  }

  void forward(std::span<const float> parameters, std::span<const float> input, std::span<float> output,
               std::span<float> /*stash*/, std::span<float> /*scratch*/) const noexcept override {
    for (std::size_t r = 0; r < rows_; ++r) {
      const float* __restrict x = input.data() + r * columns_;
      const float* __restrict position = parameters.data() + r % context_ * columns_;
      float* __restrict y = output.data() + r * columns_;
      for (std::size_t c = 0; c < columns_; ++c) y[c] = x[c] + position[c];
    }
  }

  void backward_input(std::span<const float> /*parameters*/, std::span<const float> /*stash*/,
                      std::span<const float> output_gradient, std::span<float> input_gradient,
                      std::span<float> /*scratch*/) const noexcept override {
    std::copy_n(output_gradient.data(), rows_ * columns_, input_gradient.data());
  }

  void backward_weights(std::span<const float> /*stash*/, std::span<const float> output_gradient,
                        std::span<float> parameter_gradient,
                        std::span<float> /*scratch*/) const noexcept override {
    for (std::size_t r = 0; r < rows_; ++r) {
      const float* __restrict dy = output_gradient.data() + r * columns_;
      float* __restrict position = parameter_gradient.data() + r % context_ * columns_;
      for (std::size_t c = 0; c < columns_; ++c) position[c] += dy[c];
    }
  }

 private:
  std::string name_;
  std::size_t rows_;
  std::size_t columns_;
  std::size_t context_ = 0;
  double deviation_ = 0;
};

const bool registered =
    register_layer("positions", [](const LayerSpec& spec) { return std::make_unique<Positions>(spec); });

}  // namespace
}  // namespace starpipe::model
