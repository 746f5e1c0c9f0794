// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <stdexcept>

#include "codelets/cpu/math.hpp"
#include "starpipe/model/layer.hpp"

namespace starpipe::model {
namespace {

/// The cross entropy's share of a shard of the vocabulary. The input x is the logits of the shard's tokens,
/// whose ids are [first, first + columns). The output has two floats a row: log-sum-exp(x), and the target's
/// logit, or 0 when the shard does not have the target. The loss joined_cross_entropy computes the cross
/// entropy from the outputs of all shards (Vocabulary Parallelism, MLSys 2025). Option: first. The stash is
/// the input, then the log-sum-exp of each row, then the target.
class PartialCrossEntropy final : public Layer {
 public:
  explicit PartialCrossEntropy(const LayerSpec& spec) : rows_(spec.rows), columns_(spec.columns) {
    check_options(spec, {"first"});
    if (option(spec, "first", 0) > 0) first_ = size_option(spec, "first");
    if (first_ + columns_ > cpu::max_ids) {
      throw std::invalid_argument("partial_cross_entropy: targets are floats, exact up to 2^24");
    }
  }

  std::size_t rows() const override { return rows_; }
  std::size_t input_columns() const override { return columns_; }
  std::size_t output_columns() const override { return 2; }
  std::size_t target_columns() const override { return 1; }
  bool writes_floats() const override { return true; }
  bool keeps_input() const override { return true; }
  std::size_t stash_size() const override { return rows_ * columns_ + 2 * rows_; }
  std::size_t statistics_size() const override { return 2 * rows_; }
  double flops() const override { return static_cast<double>(rows_) * static_cast<double>(columns_); }

  void forward(std::span<const float> /*parameters*/, std::span<const float> input, std::span<float> output,
               std::span<float> stash, std::span<float> /*scratch*/) const noexcept override {
    cpu::keep_input(input, stash);
    float* logarithms = stash.data() + rows_ * columns_;
    const float* target = logarithms + rows_;
    for (std::size_t r = 0; r < rows_; ++r) {
      const float* x = stash.data() + r * columns_;
      const float top = cpu::max_of(x, columns_);
      const float sum = cpu::sum_of(columns_, [x, top](std::size_t c) { return cpu::exp_of(x[c] - top); });
      logarithms[r] = static_cast<float>(static_cast<double>(top) + std::log(static_cast<double>(sum)));
      output[2 * r] = logarithms[r];
      output[2 * r + 1] = has(target[r]) ? x[column_of(target[r])] : 0.0f;
    }
  }

  void backward_input(std::span<const float> /*parameters*/, std::span<const float> stash,
                      std::span<const float> output_gradient, std::span<float> input_gradient,
                      std::span<float> /*scratch*/) const noexcept override {
    const float* logarithms = stash.data() + rows_ * columns_;
    const float* target = logarithms + rows_;
    for (std::size_t r = 0; r < rows_; ++r) {
      const float* x = stash.data() + r * columns_;
      float* dx = input_gradient.data() + r * columns_;
      const float logarithm = logarithms[r];
      const float scale = output_gradient[2 * r];
      for (std::size_t c = 0; c < columns_; ++c) dx[c] = scale * cpu::exp_of(x[c] - logarithm);
      if (has(target[r])) dx[column_of(target[r])] += output_gradient[2 * r + 1];
    }
  }

 private:
  [[nodiscard]] bool has(float id) const { return cpu::is_in_shard(id, first_, columns_); }
  [[nodiscard]] std::size_t column_of(float id) const {
    return cpu::index_of(id - static_cast<float>(first_), columns_);
  }

  std::size_t rows_;
  std::size_t columns_;
  std::size_t first_ = 0;
};

const bool registered = register_layer("partial_cross_entropy", [](const LayerSpec& spec) {
  return std::make_unique<PartialCrossEntropy>(spec);
});

}  // namespace
}  // namespace starpipe::model
