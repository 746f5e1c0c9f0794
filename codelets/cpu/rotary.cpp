// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <optional>

#include "codelets/cpu/math.hpp"
#include "model/full_width.hpp"
#include "starpipe/model/layer.hpp"

namespace starpipe::model {
namespace {

/// Rotary position embedding (Su et al., arXiv 2104.09864) with the pairs of Hugging Face's Llama: columns c
/// and c + size / 2 of a head are a pair, which is turned by the angle position * theta^(-2c / size). The
/// position is the row in its sequence. Angles are computed in double, so they are exact for any context.
/// Options: heads, size, context, theta. A row is `heads` heads of `size` columns, which are turned, and any
/// number of columns behind them, which stay. There is no stash: B turns the gradient back.
class Rotary final : public Layer {
 public:
  explicit Rotary(const LayerSpec& spec) : Layer(spec), sequence_(sequence_rows(spec)) {
    check_options(spec, {"heads", "size", "context", "theta"}, {"first_position", "positions"});
    heads_ = size_option(spec, "heads");
    const std::size_t size = size_option(spec, "size");
    half_ = size / 2;
    check_fit(spec, size % 2 == 0, "a head's size is not even");
    check_fit(spec, heads_ * size <= columns_, "columns are fewer than the columns of the heads");
    const double theta = option(spec, "theta", 0);
    for (std::size_t c = 0; c < half_; ++c) {
      frequencies_.push_back(std::pow(theta, -static_cast<double>(c) / static_cast<double>(half_)));
    }
  }

  std::size_t scratch_size() const override { return 2 * half_; }
  double flops() const override { return 6.0 * static_cast<double>(rows_ * heads_ * half_); }

  void forward(const Forward& pass) const noexcept override {
    turn(1, pass.input.data(), pass.output.data(), pass.scratch);
  }
  void forward_bf16(const DevicePasses::Forward& pass) const noexcept override {
    turn(1, pass.input.as<Bf16>(), pass.output.as<Bf16>(), pass.scratch);
  }

  void backward_input(const Backward& pass) const noexcept override {
    turn(-1, pass.output_gradient.data(), pass.input_gradient.data(), pass.scratch);
  }
  void backward_input_bf16(const DevicePasses::Backward& pass) const noexcept override {
    turn(-1, pass.output_gradient.as<Bf16>(), pass.input_gradient.as<Bf16>(), pass.scratch);
  }

 private:
  std::optional<std::size_t> prepare_bf16() override { return scratch_size(); }

  /// Turns all rows, forward with `direction` 1 and back with -1.
  template <class Number>
  void turn(double direction, const Number* from, Number* to, FloatView scratch) const noexcept {
    float* cosines = scratch.data();
    float* sines = cosines + half_;
    for (std::size_t first = 0; first < sequence_.count; ++first) {
      const std::size_t position = sequence_.position(first);
      for (std::size_t c = 0; c < half_; ++c) {
        const double angle = direction * static_cast<double>(position) * frequencies_[c];
        cosines[c] = static_cast<float>(std::cos(angle));
        sines[c] = static_cast<float>(std::sin(angle));
      }
      for (std::size_t row = first; row < rows_; row += sequence_.count) {
        at_full_width([&] { turn_row(cosines, sines, from + row * columns_, to + row * columns_); });
      }
    }
  }

  template <class Number>
  void turn_row(const float* __restrict cosines, const float* __restrict sines, const Number* __restrict x,
                Number* __restrict y) const noexcept {
    const std::size_t half = half_;
    for (std::size_t head = 0; head < heads_; ++head) {
      const std::size_t left = head * 2 * half;
      const std::size_t right = left + half;
      for (std::size_t c = 0; c < half; ++c) {
        y[left + c] = x[left + c] * cosines[c] - x[right + c] * sines[c];
        y[right + c] = x[right + c] * cosines[c] + x[left + c] * sines[c];
      }
    }
    std::copy(x + heads_ * 2 * half_, x + columns_, y + heads_ * 2 * half_);
  }

  SequenceRows sequence_;
  std::size_t heads_ = 0;
  std::size_t half_ = 0;             ///< pairs of a head
  std::vector<double> frequencies_;  ///< [pair]: the angle of position 1
};

const bool registered = register_layer<Rotary>("rotary");

}  // namespace
}  // namespace starpipe::model
