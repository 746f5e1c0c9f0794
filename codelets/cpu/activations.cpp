// SPDX-License-Identifier: Apache-2.0
#include <optional>

#include "codelets/cpu/math.hpp"
#include "model/full_width.hpp"
#include "starpipe/model/layer.hpp"

namespace starpipe::model {
namespace {

constexpr float gelu_scale = 0.7978845608028654f;  // sqrt(2 / pi)
constexpr float gelu_cubic = 0.044715f;

/// Returns (1 + tanh(u)) / 2 with u = gelu_scale * (x + gelu_cubic x^3), as the logistic function of 2u.
inline float gate(float x) noexcept {
  return cpu::logistic(2.0f * gelu_scale * (x + gelu_cubic * x * x * x));
}

/// An activation function whose stash is the input. `Kind` has its loops, for floats and for bf16:
/// activate(x, y) of F, and differentiate(x, dy, dx) of B.
template <class Kind>
class Activation : public Layer {
 public:
  using Layer::Layer;

  bool keeps_input() const final { return true; }

  void forward(const Forward& pass) const noexcept final {
    cpu::keep_input(pass.input, pass.stash);
    kind().activate(pass.input.data(), pass.output.data());
  }
  void forward_bf16(const DevicePasses::Forward& pass) const noexcept final {
    cpu::keep_input(pass.input, pass.stash);
    kind().activate(pass.input.as<Bf16>(), pass.output.as<Bf16>());
  }

  void backward_input(const Backward& pass) const noexcept final {
    kind().differentiate(pass.stash.data(), pass.output_gradient.data(), pass.input_gradient.data());
  }
  void backward_input_bf16(const DevicePasses::Backward& pass) const noexcept final {
    kind().differentiate(pass.stash.as<Bf16>(), pass.output_gradient.as<Bf16>(),
                         pass.input_gradient.as<Bf16>());
  }

 private:
  const Kind& kind() const noexcept { return static_cast<const Kind&>(*this); }
  std::optional<std::size_t> prepare_bf16() final { return 0; }
};

/// GPT-2's gelu_new: torch.nn.GELU(approximate="tanh"). No options. The stash is the input.
class Gelu final : public Activation<Gelu> {
 public:
  explicit Gelu(const LayerSpec& spec) : Activation(spec) { check_options(spec, {}); }

  double flops() const override { return 20.0 * static_cast<double>(rows_) * static_cast<double>(columns_); }

  template <class Number>
  void activate(const Number* input, Number* output) const noexcept {
    at_full_width([&] {
      const std::size_t count = rows_ * columns_;
      const Number* __restrict x = input;
      Number* __restrict y = output;
      for (std::size_t i = 0; i < count; ++i) y[i] = x[i] * gate(x[i]);
    });
  }

  template <class Number>
  void differentiate(const Number* input, const Number* output_gradient,
                     Number* input_gradient) const noexcept {
    at_full_width([&] {
      const std::size_t count = rows_ * columns_;
      const Number* __restrict of_x = input;
      const Number* __restrict dy = output_gradient;
      Number* __restrict dx = input_gradient;
      for (std::size_t i = 0; i < count; ++i) {
        const float x = of_x[i];
        const float g = gate(x);
        // x is clamped for the second term: that term is 0 long before |x| = 16, but x^3 would overflow to
        // infinity.
        const float z = cpu::limit_to(cpu::limit_to(x, -16.0f, x < -16.0f), 16.0f, x > 16.0f);
        const float slope = 2.0f * gelu_scale * (1.0f + 3.0f * gelu_cubic * z * z);  // d(2u)/dx
        dx[i] = dy[i] * (g + z * g * (1.0f - g) * slope);
      }
    });
  }
};

/// Swish-gated linear unit (Shazeer, arXiv 2002.05202) without its linear maps. Input: rows [gate | up] of
/// two halves; output: rows of half as many columns, silu(gate) * up with silu(g) = g / (1 + e^-g). No
/// options. The stash is the input.
class Swiglu final : public Activation<Swiglu> {
 public:
  explicit Swiglu(const LayerSpec& spec) : Activation(spec), half_(spec.columns / 2) {
    check_options(spec, {});
    check_fit(spec, columns_ % 2 == 0, "columns are not even");
  }

  std::size_t output_columns() const override { return half_; }
  double flops() const override { return 20.0 * static_cast<double>(rows_) * static_cast<double>(half_); }

  template <class Number>
  void activate(const Number* input, Number* output) const noexcept {
    at_full_width([&] {
      const std::size_t half = half_;
      for (std::size_t r = 0; r < rows_; ++r) {
        const Number* __restrict gate = input + r * columns_;
        const Number* __restrict up = gate + half;
        Number* __restrict y = output + r * half;
        for (std::size_t c = 0; c < half; ++c) {
          const float g = clamped(gate[c]);
          y[c] = g * cpu::logistic(g) * up[c];
        }
      }
    });
  }

  template <class Number>
  void differentiate(const Number* input, const Number* output_gradient,
                     Number* input_gradient) const noexcept {
    at_full_width([&] {
      const std::size_t half = half_;
      for (std::size_t r = 0; r < rows_; ++r) {
        const Number* __restrict gate = input + r * columns_;
        const Number* __restrict up = gate + half;
        const Number* __restrict dy = output_gradient + r * half;
        Number* __restrict dgate = input_gradient + r * columns_;
        Number* __restrict dup = dgate + half;
        for (std::size_t c = 0; c < half; ++c) {
          const float g = clamped(gate[c]);
          const float opening = cpu::logistic(g);
          dgate[c] = dy[c] * up[c] * opening * (1.0f + g * (1.0f - opening));
          dup[c] = dy[c] * g * opening;
        }
      }
    });
  }

 private:
  /// Returns the gate, but at least -80: silu and its slope are below 1e-32 there. Further out exp_of() no
  /// longer follows e^x, and a product with a large gate would not be small.
  static float clamped(float gate) noexcept { return cpu::limit_to(gate, -80.0f, gate < -80.0f); }

  std::size_t half_;  ///< columns of the gate, of `up` and of the output
};

const bool registered[] = {register_layer<Gelu>("gelu"), register_layer<Swiglu>("swiglu")};

}  // namespace
}  // namespace starpipe::model
