// SPDX-License-Identifier: Apache-2.0
#include "codelets/cpu/math.hpp"
#include "starpipe/model/layer.hpp"

namespace starpipe::model {
namespace {

constexpr float gelu_scale = 0.7978845608028654f;  // sqrt(2 / pi)
constexpr float gelu_cubic = 0.044715f;

/// (1 + tanh(u)) / 2 with u = gelu_scale * (x + gelu_cubic x^3), as the logistic function of 2u.
inline float gate(float x) noexcept {
  return cpu::logistic(2.0f * gelu_scale * (x + gelu_cubic * x * x * x));
}

/// GPT-2's gelu_new: torch.nn.GELU(approximate="tanh"). No options. The stash is the input.
class Gelu final : public BasicLayer {
 public:
  explicit Gelu(const LayerSpec& spec) : BasicLayer(spec) { check_options(spec, {}); }

  std::size_t stash_size() const override { return rows_ * columns_; }
  bool keeps_input() const override { return true; }
  double flops() const override { return 20.0 * static_cast<double>(rows_) * static_cast<double>(columns_); }

  void forward(ConstFloatView /*parameters*/, ConstFloatView input, FloatView output, FloatView stash,
               FloatView /*scratch*/) const noexcept override {
    const std::size_t count = rows_ * columns_;
    cpu::keep_input(input, stash);
    const float* __restrict x = input.data();
    float* __restrict y = output.data();
    for (std::size_t i = 0; i < count; ++i) y[i] = x[i] * gate(x[i]);
  }

  void backward_input(ConstFloatView /*parameters*/, ConstFloatView stash, ConstFloatView output_gradient,
                      FloatView input_gradient, FloatView /*scratch*/) const noexcept override {
    const std::size_t count = rows_ * columns_;
    const float* __restrict x = stash.data();
    const float* __restrict dy = output_gradient.data();
    float* __restrict dx = input_gradient.data();
    for (std::size_t i = 0; i < count; ++i) {
      const float g = gate(x[i]);
      // x is clamped for the second term: that term is 0 long before |x| = 16, but x^3 would overflow to
      // infinity.
      const float z = cpu::limit_to(cpu::limit_to(x[i], -16.0f, x[i] < -16.0f), 16.0f, x[i] > 16.0f);
      const float slope = 2.0f * gelu_scale * (1.0f + 3.0f * gelu_cubic * z * z);  // d(2u)/dx
      dx[i] = dy[i] * (g + z * g * (1.0f - g) * slope);
    }
  }
};

const bool registered = register_layer<Gelu>("gelu");

}  // namespace
}  // namespace starpipe::model
