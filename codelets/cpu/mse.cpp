// SPDX-License-Identifier: Apache-2.0
#include "codelets/cpu/math.hpp"
#include "starpipe/model/layer.hpp"

namespace starpipe::model {
namespace {

/// torch.nn.MSELoss: the mean over rows and columns of the squared error. The stash is the errors, input -
/// target: the gradient but for a factor.
class MeanSquaredError final : public cpu::GradientLoss {
 public:
  MeanSquaredError(std::size_t rows, std::size_t columns) : GradientLoss(rows, columns) {}

  std::size_t target_columns() const override { return columns_; }

  float forward(ConstFloatView input, ConstFloatView target, FloatView stash) const noexcept override {
    const std::size_t count = rows_ * columns_;
    double total = 0;
    for (std::size_t i = 0; i < count; ++i) {
      stash[i] = input[i] - target[i];
      total += static_cast<double>(stash[i]) * static_cast<double>(stash[i]);
    }
    return static_cast<float>(total / static_cast<double>(count));
  }

  void backward_input(ConstFloatView stash, float scale, FloatView input_gradient) const noexcept override {
    GradientLoss::backward_input(stash, 2.0f * scale / static_cast<float>(rows_ * columns_), input_gradient);
  }
};

const bool registered = register_loss<MeanSquaredError>("mse");

}  // namespace
}  // namespace starpipe::model
