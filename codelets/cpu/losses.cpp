// SPDX-License-Identifier: Apache-2.0
// Cross entropy on token ids (torch.nn.CrossEntropyLoss): the mean over the rows of log-sum-exp(x) -
// x[target]. The logits are whole, or in shards of the vocabulary (Vocabulary Parallelism, MLSys 2025). Then
// each shard has a layer partial_cross_entropy, and the loss joined_cross_entropy reads the outputs of these
// layers.
#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "codelets/cpu/math.hpp"
#include "model/full_width.hpp"
#include "starpipe/model/layer.hpp"

namespace starpipe::model {
namespace {

/// torch.nn.MSELoss: the mean over rows and columns of the squared error. The stash is the errors, input -
/// target: the gradient but for a factor.
class MeanSquaredError final : public Loss {
 public:
  using Loss::Loss;

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
    Loss::backward_input(stash, 2.0f * scale / static_cast<float>(rows_ * columns_), input_gradient);
  }
};

/// The stash is the gradient, (softmax(x) - one-hot(target)) / rows.
class CrossEntropy final : public Loss {
 public:
  CrossEntropy(std::size_t rows, std::size_t columns) : Loss(rows, columns) {
    if (columns > max_ids) {
      throw std::invalid_argument("cross_entropy: targets are floats, exact up to 2^24");
    }
  }

  std::size_t target_columns() const override { return 1; }

  float forward(ConstFloatView input, ConstFloatView target, FloatView stash) const noexcept override {
    double total = 0;
    at_full_width([&] {
      for (std::size_t r = 0; r < rows_; ++r) {
        const float* x = input.data() + r * columns_;
        float* p = stash.data() + r * columns_;
        const float top = cpu::max_of(x, columns_);
        for (std::size_t c = 0; c < columns_; ++c) p[c] = cpu::exp_of(x[c] - top);
        const float sum = cpu::sum_of(columns_, [p](std::size_t c) { return p[c]; });
        const float scale = 1.0f / (sum * static_cast<float>(rows_));
        for (std::size_t c = 0; c < columns_; ++c) p[c] *= scale;
        const std::size_t label = index_of(target[r], columns_);
        p[label] -= 1.0f / static_cast<float>(rows_);
        total += static_cast<double>(top - x[label]) + std::log(static_cast<double>(sum));
      }
    });
    return static_cast<float>(total / static_cast<double>(rows_));
  }
};

/// A shard's part of the cross entropy. The input x is the logits of the tokens with the ids [first, first +
/// columns). The output has two floats per row: log-sum-exp(x), and the target's logit, or 0 if the shard
/// does not have the target. Option: first. The stash is x, then the log-sum-exp of each row, then the
/// target.
class PartialCrossEntropy final : public Layer {
 public:
  explicit PartialCrossEntropy(const LayerSpec& spec) : Layer(spec) {
    check_options(spec, {"first"});
    tokens_ = token_range(spec, columns_);
    check_fit(spec, tokens_.end() <= max_ids, "targets are floats, exact up to 2^24");
  }

  std::size_t output_columns() const override { return 2; }
  std::size_t target_columns() const override { return 1; }
  bool writes_floats() const override { return true; }
  bool keeps_input() const override { return true; }
  std::size_t statistics_size() const override { return 2 * rows_; }
  double flops() const override { return static_cast<double>(rows_) * static_cast<double>(columns_); }

  void forward(const Forward& pass) const noexcept override {
    cpu::keep_input(pass.input, pass.stash);
    float* logarithms = pass.stash.data() + rows_ * columns_;
    const float* target = logarithms + rows_;
    at_full_width([&] {
      for (std::size_t r = 0; r < rows_; ++r) {
        const float* x = pass.stash.data() + r * columns_;
        const float top = cpu::max_of(x, columns_);
        const float sum = cpu::sum_of(columns_, [x, top](std::size_t c) { return cpu::exp_of(x[c] - top); });
        logarithms[r] = static_cast<float>(static_cast<double>(top) + std::log(static_cast<double>(sum)));
        pass.output[2 * r] = logarithms[r];
        const std::size_t label = tokens_.row_of(target[r]);
        pass.output[2 * r + 1] = label < columns_ ? x[label] : 0.0f;
      }
    });
  }

  void backward_input(const Backward& pass) const noexcept override {
    const float* logarithms = pass.stash.data() + rows_ * columns_;
    const float* target = logarithms + rows_;
    at_full_width([&] {
      for (std::size_t r = 0; r < rows_; ++r) {
        const float* x = pass.stash.data() + r * columns_;
        float* dx = pass.input_gradient.data() + r * columns_;
        const float logarithm = logarithms[r];
        const float scale = pass.output_gradient[2 * r];
        for (std::size_t c = 0; c < columns_; ++c) dx[c] = scale * cpu::exp_of(x[c] - logarithm);
        const std::size_t label = tokens_.row_of(target[r]);
        if (label < columns_) dx[label] += pass.output_gradient[2 * r + 1];
      }
    });
  }

 private:
  TokenRange tokens_;
};

/// The loss of logits in shards. A row of the input has the two numbers of each shard: l, the log-sum-exp of
/// its logits, and t, the target's logit or 0. So a row's loss is log-sum-exp(l) - sum(t), which reads no
/// target. The stash is the gradient: softmax(l) / rows, and -1 / rows for each t.
class JoinedCrossEntropy final : public Loss {
 public:
  JoinedCrossEntropy(std::size_t rows, std::size_t columns) : Loss(rows, columns) {
    if (columns % 2 != 0) throw std::invalid_argument("joined_cross_entropy: columns are not pairs");
  }

  std::size_t target_columns() const override { return 0; }

  float forward(ConstFloatView input, ConstFloatView /*target*/, FloatView stash) const noexcept override {
    const auto rows = static_cast<double>(rows_);
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
      for (std::size_t c = 0; c < columns_; c += 2) {
        gradient[c] = static_cast<float>(std::exp(static_cast<double>(x[c]) - logarithm) / rows);
        gradient[c + 1] = static_cast<float>(-1 / rows);
      }
      total += logarithm - logit;
    }
    return static_cast<float>(total / rows);
  }
};

const bool registered[] = {register_loss<MeanSquaredError>("mse"),
                           register_loss<CrossEntropy>("cross_entropy"),
                           register_layer<PartialCrossEntropy>("partial_cross_entropy"),
                           register_loss<JoinedCrossEntropy>("joined_cross_entropy")};

}  // namespace
}  // namespace starpipe::model
