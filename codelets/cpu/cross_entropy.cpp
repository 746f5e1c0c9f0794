// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <stdexcept>

#include "codelets/cpu/math.hpp"
#include "starpipe/model/layer.hpp"

namespace starpipe::model {
namespace {

/// torch.nn.CrossEntropyLoss on token ids: the mean over the rows of log-sum-exp(x) - x[target]. The stash is
/// the gradient of this mean: (softmax(x) - one-hot(target)) / rows.
class CrossEntropy final : public Loss {
 public:
  CrossEntropy(std::size_t rows, std::size_t columns) : rows_(rows), columns_(columns) {
    if (columns > cpu::max_ids) {
      throw std::invalid_argument("cross_entropy: targets are floats, exact up to 2^24");
    }
  }

  std::size_t rows() const override { return rows_; }
  std::size_t input_columns() const override { return columns_; }
  std::size_t target_columns() const override { return 1; }
  std::size_t stash_size() const override { return rows_ * columns_; }

  float forward(std::span<const float> input, std::span<const float> target,
                std::span<float> stash) const noexcept override {
    double total = 0;
    for (std::size_t r = 0; r < rows_; ++r) {
      const float* x = input.data() + r * columns_;
      float* p = stash.data() + r * columns_;
      const float top = cpu::max_of(x, columns_);
      for (std::size_t c = 0; c < columns_; ++c) p[c] = cpu::exp_of(x[c] - top);
      const float sum = cpu::sum_of(columns_, [p](std::size_t c) { return p[c]; });
      const float scale = 1.0f / (sum * static_cast<float>(rows_));
      for (std::size_t c = 0; c < columns_; ++c) p[c] *= scale;
      const std::size_t label = cpu::index_of(target[r], columns_);
      p[label] -= 1.0f / static_cast<float>(rows_);
      total += static_cast<double>(top - x[label]) + std::log(static_cast<double>(sum));
    }
    return static_cast<float>(total / static_cast<double>(rows_));
  }

  void backward_input(std::span<const float> stash, float scale,
                      std::span<float> input_gradient) const noexcept override {
    cpu::scale(scale, stash, input_gradient);
  }

 private:
  std::size_t rows_;
  std::size_t columns_;
};

const bool registered = register_loss("cross_entropy", [](std::size_t rows, std::size_t columns) {
  return std::make_unique<CrossEntropy>(rows, columns);
});

}  // namespace
}  // namespace starpipe::model
