// SPDX-License-Identifier: Apache-2.0
#include "codelets/cpu/math.hpp"
#include "starpipe/model/layer.hpp"

namespace starpipe::model {
namespace {

/// torch.nn.MSELoss: the mean over rows and columns of the squared error. The stash is the errors, input -
/// target.
class MeanSquaredError final : public Loss {
 public:
  MeanSquaredError(std::size_t rows, std::size_t columns) : rows_(rows), columns_(columns) {}

  std::size_t rows() const override { return rows_; }
  std::size_t input_columns() const override { return columns_; }
  std::size_t target_columns() const override { return columns_; }
  std::size_t stash_size() const override { return rows_ * columns_; }

  float forward(std::span<const float> input, std::span<const float> target,
                std::span<float> stash) const noexcept override {
    const std::size_t count = rows_ * columns_;
    double total = 0;
    for (std::size_t i = 0; i < count; ++i) {
      stash[i] = input[i] - target[i];
      total += static_cast<double>(stash[i]) * static_cast<double>(stash[i]);
    }
    return static_cast<float>(total / static_cast<double>(count));
  }

  void backward_input(std::span<const float> stash, float scale,
                      std::span<float> input_gradient) const noexcept override {
    cpu::scale(2.0f * scale / static_cast<float>(rows_ * columns_), stash, input_gradient);
  }

 private:
  std::size_t rows_;
  std::size_t columns_;
};

const bool registered = register_loss("mse", [](std::size_t rows, std::size_t columns) {
  return std::make_unique<MeanSquaredError>(rows, columns);
});

}  // namespace
}  // namespace starpipe::model
