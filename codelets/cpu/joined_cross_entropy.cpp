// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "codelets/cpu/math.hpp"
#include "starpipe/model/layer.hpp"

namespace starpipe::model {
namespace {

/// The cross entropy of logits that are in shards: the mean over the rows of log-sum-exp(x) - x[target]. A
/// row of the input has two numbers of each shard, those of the layer partial_cross_entropy: l, the
/// log-sum-exp of the shard's logits, and t, the target's logit or 0. So the mean is that of log-sum-exp(l) -
/// sum(t), which reads no target. The stash is its gradient: softmax(l) / rows, and -1 / rows for each t.
class JoinedCrossEntropy final : public Loss {
 public:
  JoinedCrossEntropy(std::size_t rows, std::size_t columns) : rows_(rows), columns_(columns) {
    if (columns % 2 != 0) throw std::invalid_argument("joined_cross_entropy: columns are not pairs");
  }

  std::size_t rows() const override { return rows_; }
  std::size_t input_columns() const override { return columns_; }
  std::size_t target_columns() const override { return 0; }
  std::size_t stash_size() const override { return rows_ * columns_; }

  float forward(std::span<const float> input, std::span<const float> /*target*/,
                std::span<float> stash) const noexcept override {
    double total = 0;
    for (std::size_t r = 0; r < rows_; ++r) {
      const float* x = input.data() + r * columns_;
      float* gradient = stash.data() + r * columns_;
      float top = x[0];
      for (std::size_t c = 2; c < columns_; c += 2) top = std::max(top, x[c]);
      double sum = 0;
      double logit = 0;
      for (std::size_t c = 0; c < columns_; c += 2) {
        sum += std::exp(static_cast<double>(x[c] - top));
        logit += static_cast<double>(x[c + 1]);
      }
      const double logarithm = static_cast<double>(top) + std::log(sum);
      const auto rows = static_cast<double>(rows_);
      for (std::size_t c = 0; c < columns_; c += 2) {
        gradient[c] = static_cast<float>(std::exp(static_cast<double>(x[c]) - logarithm) / rows);
        gradient[c + 1] = static_cast<float>(-1 / rows);
      }
      total += logarithm - logit;
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

const bool registered = register_loss("joined_cross_entropy", [](std::size_t rows, std::size_t columns) {
  return std::make_unique<JoinedCrossEntropy>(rows, columns);
});

}  // namespace
}  // namespace starpipe::model
