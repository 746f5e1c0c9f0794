// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "codelets/cpu/math.hpp"
#include "starpipe/model/layer.hpp"

namespace starpipe::model {
namespace {

/// Token embedding plus learned position: y[r] = wte[x[r]] + wpe[r mod context]. Options: vocabulary,
/// outputs; context: without it there are no positions, and the only parameter is "weight"; deviation of the
/// start values (default 0). Token ids must be in [0, vocabulary). The stash is the token ids.
///
/// Option first, of a shard, which has no positions: the table has the tokens in [first, first + vocabulary),
/// and y[r] is zero for every other token.
class Embedding final : public BasicLayer {
 public:
  explicit Embedding(const LayerSpec& spec) : BasicLayer(spec) {
    check_options(spec, {"vocabulary", "outputs"}, {"context", "deviation", "first"});
    shard_ = cpu::shard_of(spec, size_option(spec, "vocabulary"));
    positions_ = spec.options.contains("context");
    context_ = size_option(spec, "context", rows_);
    outputs_ = size_option(spec, "outputs");
    deviation_ = option(spec, "deviation", 0);
    is_shard_ = spec.options.contains("first");
    check_fit(spec, !is_shard_ || !positions_, "option first does not go with context");
    check_fit(spec, shard_.end() <= cpu::max_ids, "token ids are floats, exact up to 2^24");
    check_fit(spec, columns_ == 1, "input is not one column");
    check_fit(spec, rows_ % context_ == 0, "rows are not whole sequences");
  }

  std::size_t output_columns() const override { return outputs_; }
  std::size_t stash_size() const override { return rows_; }
  std::size_t statistics_size() const override { return rows_; }
  bool reads_ids() const override { return true; }
  double flops() const override { return static_cast<double>(rows_) * static_cast<double>(outputs_); }

  std::vector<Parameter> parameters() const override {
    if (!positions_) return {{name_ + ".weight", {shard_.count, outputs_}, deviation_, 0}};
    return {{name_ + ".wte.weight", {shard_.count, outputs_}, deviation_, 0},
            {name_ + ".wpe.weight", {context_, outputs_}, deviation_, 0}};
  }

  void forward(ConstFloatView parameters, ConstFloatView input, FloatView output, FloatView stash,
               FloatView /*scratch*/) const noexcept override {
    std::copy_n(input.data(), rows_, stash.data());
    const float* positions = parameters.data() + shard_.count * outputs_;
    for (std::size_t r = 0; r < rows_; ++r) {
      float* y = output.data() + r * outputs_;
      if (!has(input[r])) {
        std::fill_n(y, outputs_, 0.0f);
        continue;
      }
      const float* token = parameters.data() + shard_.index_of(input[r]) * outputs_;
      std::copy_n(token, outputs_, y);
      if (!positions_) continue;
      const float* position = positions + r % context_ * outputs_;
      for (std::size_t c = 0; c < outputs_; ++c) y[c] += position[c];
    }
  }

  /// Token ids have no gradient: writes zeros.
  void backward_input(ConstFloatView /*parameters*/, ConstFloatView /*stash*/,
                      ConstFloatView /*output_gradient*/, FloatView input_gradient,
                      FloatView /*scratch*/) const noexcept override {
    std::fill_n(input_gradient.data(), rows_, 0.0f);
  }

  void backward_weights(ConstFloatView stash, ConstFloatView output_gradient, FloatView parameter_gradient,
                        FloatView /*scratch*/) const noexcept override {
    float* positions = parameter_gradient.data() + shard_.count * outputs_;
    for (std::size_t r = 0; r < rows_; ++r) {
      if (!has(stash[r])) continue;
      float* token = parameter_gradient.data() + shard_.index_of(stash[r]) * outputs_;
      const float* dy = output_gradient.data() + r * outputs_;
      for (std::size_t c = 0; c < outputs_; ++c) token[c] += dy[c];
      if (!positions_) continue;
      float* position = positions + r % context_ * outputs_;
      for (std::size_t c = 0; c < outputs_; ++c) position[c] += dy[c];
    }
  }

 private:
  [[nodiscard]] bool has(float id) const { return !is_shard_ || shard_.has(id); }

  cpu::VocabularyShard shard_;  ///< the tokens of the table: of the whole vocabulary, unless is_shard_
  bool is_shard_ = false;
  bool positions_ = false;
  std::size_t context_ = 0;
  std::size_t outputs_ = 0;
  double deviation_ = 0;
};

const bool registered = register_layer<Embedding>("embedding");

}  // namespace
}  // namespace starpipe::model
