// SPDX-License-Identifier: Apache-2.0
#include "codelets/cpu/math.hpp"
#include "starpipe/model/layer.hpp"

namespace starpipe::model {
namespace {

/// Swish-gated linear unit (Shazeer, arXiv 2002.05202) without its linear maps. Input: rows [gate | up] of
/// two halves; output: rows of half as many columns, silu(gate) * up with silu(g) = g / (1 + e^-g). No
/// options. The stash is the input.
class Swiglu final : public BasicLayer {
 public:
  explicit Swiglu(const LayerSpec& spec) : BasicLayer(spec), half_(spec.columns / 2) {
    check_options(spec, {});
    check_fit(spec, columns_ % 2 == 0, "columns are not even");
  }

  std::size_t output_columns() const override { return half_; }
  std::size_t stash_size() const override { return rows_ * columns_; }
  bool keeps_input() const override { return true; }
  double flops() const override { return 20.0 * static_cast<double>(rows_) * static_cast<double>(half_); }

  void forward(ConstFloatView /*parameters*/, ConstFloatView input, FloatView output, FloatView stash,
               FloatView /*scratch*/) const noexcept override {
    cpu::keep_input(input, stash);
    for (std::size_t r = 0; r < rows_; ++r) {
      const float* __restrict gate = input.data() + r * columns_;
      const float* __restrict up = gate + half_;
      float* __restrict y = output.data() + r * half_;
      for (std::size_t c = 0; c < half_; ++c) {
        const float g = clamped(gate[c]);
        y[c] = g * cpu::logistic(g) * up[c];
      }
    }
  }

  void backward_input(ConstFloatView /*parameters*/, ConstFloatView stash, ConstFloatView output_gradient,
                      FloatView input_gradient, FloatView /*scratch*/) const noexcept override {
    for (std::size_t r = 0; r < rows_; ++r) {
      const float* __restrict gate = stash.data() + r * columns_;
      const float* __restrict up = gate + half_;
      const float* __restrict dy = output_gradient.data() + r * half_;
      float* __restrict dgate = input_gradient.data() + r * columns_;
      float* __restrict dup = dgate + half_;
      for (std::size_t c = 0; c < half_; ++c) {
        const float g = clamped(gate[c]);
        const float opening = cpu::logistic(g);
        dgate[c] = dy[c] * up[c] * opening * (1.0f + g * (1.0f - opening));
        dup[c] = dy[c] * g * opening;
      }
    }
  }

 private:
  /// The gate, but at least -80: silu and its slope are below 1e-32 there. Further out exp_of() no longer
  /// follows e^x, and a product with a large gate would not be small.
  static float clamped(float gate) noexcept { return cpu::limit_to(gate, -80.0f, gate < -80.0f); }

  std::size_t half_;  ///< columns of the gate, of `up` and of the output
};

const bool registered = register_layer<Swiglu>("swiglu");

}  // namespace
}  // namespace starpipe::model
