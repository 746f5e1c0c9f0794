// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>

#include "codelets/cpu/math.hpp"
#include "model/full_width.hpp"
#include "starpipe/model/layer.hpp"

namespace starpipe::model {
namespace {

/// Token embedding plus learned position: y[r] = wte[x[r]] + wpe[position of row r]. Options: vocabulary,
/// outputs; those of sequence_rows: without context there are no positions, and the only parameter is
/// "weight"; deviation of the start values (default 0). Token ids must be in [0, vocabulary). The stash is
/// the token ids.
///
/// Option first, of a shard, which has no positions: the table has the tokens in [first, first + vocabulary),
/// and y[r] is zero for every other token.
class Embedding final : public Layer {
 public:
  explicit Embedding(const LayerSpec& spec) : Layer(spec) {
    check_options(spec, {"vocabulary", "outputs"},
                  {"context", "deviation", "first", "first_position", "positions"});
    table_ = token_range(spec, size_option(spec, "vocabulary"));
    positions_ = spec.options.contains("context");
    if (positions_) sequence_ = sequence_rows(spec);
    outputs_ = size_option(spec, "outputs");
    deviation_ = option(spec, "deviation", 0);
    check_fit(spec, !table_.is_shard || !positions_, "option first does not go with context");
    check_fit(spec, table_.end() <= max_ids, "token ids are floats, exact up to 2^24");
    check_fit(spec, columns_ == 1, "input is not one column");
  }

  std::size_t output_columns() const override { return outputs_; }
  std::size_t statistics_size() const override { return rows_; }
  bool reads_ids() const override { return true; }
  double flops() const override { return static_cast<double>(rows_) * static_cast<double>(outputs_); }

  std::vector<Parameter> parameters() const override {
    if (!positions_) return {{name_ + ".weight", {table_.count, outputs_}, deviation_, 0}};
    return {{name_ + ".wte.weight", {table_.count, outputs_}, deviation_, 0},
            {name_ + ".wpe.weight", {sequence_.context, outputs_}, deviation_, 0}};
  }

  void forward(const Forward& pass) const noexcept override {
    look_up(pass.input.data(), pass.parameters.data(), pass.output.data(), pass.stash.data());
  }
  void forward_bf16(const DevicePasses::Forward& pass) const noexcept override {
    look_up(pass.input.as<float>(), pass.parameters.as<Bf16>(), pass.output.as<Bf16>(),
            pass.stash.as<float>());
  }

  /// Token ids have no gradient: writes zeros.
  void backward_input(const Backward& pass) const noexcept override {
    std::fill_n(pass.input_gradient.data(), rows_, 0.0f);
  }
  void backward_input_bf16(const DevicePasses::Backward& pass) const noexcept override {
    std::fill_n(pass.input_gradient.as<float>(), rows_, 0.0f);
  }

  void backward_weights(const Weights& pass) const noexcept override {
    add_gradient(pass.stash.data(), pass.output_gradient.data(), pass.parameter_gradient.data());
  }
  void backward_weights_bf16(const DevicePasses::Weights& pass) const noexcept override {
    add_gradient(pass.stash.as<float>(), pass.output_gradient.as<Bf16>(), pass.parameter_gradient.data());
  }

 private:
  std::optional<std::size_t> prepare_bf16() override { return 0; }

  template <class Number>
  void look_up(const float* ids, const Number* tokens, Number* output, float* stash) const noexcept {
    std::copy_n(ids, rows_, stash);
    const Number* positions = tokens + table_.count * outputs_;
    for (std::size_t r = 0; r < rows_; ++r) {
      Number* y = output + r * outputs_;
      const std::size_t row = table_.row_of(ids[r]);
      if (row == table_.count) {
        std::fill_n(y, outputs_, 0.0f);
        continue;
      }
      const Number* token = tokens + row * outputs_;
      if (!positions_) {
        std::copy_n(token, outputs_, y);
        continue;
      }
      const Number* position = positions + sequence_.position(r) * outputs_;
      for (std::size_t c = 0; c < outputs_; ++c) y[c] = token[c] + position[c];
    }
  }

  template <class Number>
  void add_gradient(const float* ids, const Number* output_gradient, float* gradient) const noexcept {
    float* positions = gradient + table_.count * outputs_;
    for (std::size_t r = 0; r < rows_; ++r) {
      const std::size_t row = table_.row_of(ids[r]);
      if (row == table_.count) continue;
      float* token = gradient + row * outputs_;
      const Number* dy = output_gradient + r * outputs_;
      for (std::size_t c = 0; c < outputs_; ++c) token[c] += dy[c];
      if (!positions_) continue;
      float* position = positions + sequence_.position(r) * outputs_;
      for (std::size_t c = 0; c < outputs_; ++c) position[c] += dy[c];
    }
  }

  TokenRange table_;
  bool positions_ = false;
  SequenceRows sequence_;
  std::size_t outputs_ = 0;
  double deviation_ = 0;
};

/// Adds a learned position to each row: y[r] = x[r] + weight[position of row r]. Options: those of
/// sequence_rows; deviation of the start values (default 0). There is no stash. An embedding without
/// positions followed by this layer equals an embedding with positions, bit by bit in fp32.
class Positions final : public Layer {
 public:
  explicit Positions(const LayerSpec& spec) : Layer(spec), sequence_(sequence_rows(spec)) {
    check_options(spec, {"context"}, {"deviation", "first_position", "positions"});
    deviation_ = option(spec, "deviation", 0);
  }

  double flops() const override { return static_cast<double>(rows_) * static_cast<double>(columns_); }
  std::vector<Parameter> parameters() const override {
    return {{name_ + ".weight", {sequence_.context, columns_}, deviation_, 0}};
  }

  void forward(const Forward& pass) const noexcept override {
    add_positions(pass.input.data(), pass.parameters.data(), pass.output.data());
  }
  void forward_bf16(const DevicePasses::Forward& pass) const noexcept override {
    add_positions(pass.input.as<Bf16>(), pass.parameters.as<Bf16>(), pass.output.as<Bf16>());
  }

  void backward_input(const Backward& pass) const noexcept override {
    std::copy_n(pass.output_gradient.data(), rows_ * columns_, pass.input_gradient.data());
  }
  void backward_input_bf16(const DevicePasses::Backward& pass) const noexcept override {
    std::copy_n(pass.output_gradient.as<Bf16>(), rows_ * columns_, pass.input_gradient.as<Bf16>());
  }

  void backward_weights(const Weights& pass) const noexcept override {
    add_gradient(pass.output_gradient.data(), pass.parameter_gradient.data());
  }
  void backward_weights_bf16(const DevicePasses::Weights& pass) const noexcept override {
    add_gradient(pass.output_gradient.as<Bf16>(), pass.parameter_gradient.data());
  }

 private:
  std::optional<std::size_t> prepare_bf16() override { return 0; }

  template <class Number>
  void add_positions(const Number* input, const Number* positions, Number* output) const noexcept {
    at_full_width([&] {
      const std::size_t columns = columns_;
      for (std::size_t r = 0; r < rows_; ++r) {
        const Number* __restrict x = input + r * columns;
        const Number* __restrict position = positions + sequence_.position(r) * columns;
        Number* __restrict y = output + r * columns;
        for (std::size_t c = 0; c < columns; ++c) y[c] = x[c] + position[c];
      }
    });
  }

  template <class Number>
  void add_gradient(const Number* output_gradient, float* gradient) const noexcept {
    at_full_width([&] {
      const std::size_t columns = columns_;
      for (std::size_t r = 0; r < rows_; ++r) {
        const Number* __restrict dy = output_gradient + r * columns;
        float* __restrict position = gradient + sequence_.position(r) * columns;
        for (std::size_t c = 0; c < columns; ++c) position[c] += dy[c];
      }
    });
  }

  SequenceRows sequence_;
  double deviation_ = 0;
};

const bool registered[] = {register_layer<Embedding>("embedding"), register_layer<Positions>("positions")};

}  // namespace
}  // namespace starpipe::model
