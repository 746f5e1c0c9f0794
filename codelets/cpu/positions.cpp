// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "codelets/cpu/math.hpp"
#include "starpipe/model/layer.hpp"

namespace starpipe::model {
namespace {

/// Adds a learned position to each row: y[r] = x[r] + weight[r mod context]. Options: context; deviation of
/// the start values (default 0). There is no stash. An embedding without positions followed by this layer
/// equals an embedding with positions, bit by bit in fp32.
class Positions final : public BasicLayer {
 public:
  explicit Positions(const LayerSpec& spec) : BasicLayer(spec) {
    check_options(spec, {"context"}, {"deviation"});
    context_ = size_option(spec, "context");
    deviation_ = option(spec, "deviation", 0);
    check_fit(spec, rows_ % context_ == 0, "rows are not whole sequences");
  }

  std::size_t stash_size() const override { return 0; }
  double flops() const override { return static_cast<double>(rows_) * static_cast<double>(columns_); }
  std::vector<Parameter> parameters() const override {
    return {{name_ + ".weight", {context_, columns_}, deviation_, 0}};
  }

  void forward(ConstFloatView parameters, ConstFloatView input, FloatView output, FloatView /*stash*/,
               FloatView /*scratch*/) const noexcept override {
    for (std::size_t r = 0; r < rows_; ++r) {
      const float* __restrict x = input.data() + r * columns_;
      const float* __restrict position = parameters.data() + r % context_ * columns_;
      float* __restrict y = output.data() + r * columns_;
      for (std::size_t c = 0; c < columns_; ++c) y[c] = x[c] + position[c];
    }
  }

  void backward_input(ConstFloatView /*parameters*/, ConstFloatView /*stash*/, ConstFloatView output_gradient,
                      FloatView input_gradient, FloatView /*scratch*/) const noexcept override {
    std::copy_n(output_gradient.data(), rows_ * columns_, input_gradient.data());
  }

  void backward_weights(ConstFloatView /*stash*/, ConstFloatView output_gradient,
                        FloatView parameter_gradient, FloatView /*scratch*/) const noexcept override {
    for (std::size_t r = 0; r < rows_; ++r) {
      const float* __restrict dy = output_gradient.data() + r * columns_;
      float* __restrict position = parameter_gradient.data() + r % context_ * columns_;
      for (std::size_t c = 0; c < columns_; ++c) position[c] += dy[c];
    }
  }

 private:
  std::size_t context_ = 0;
  double deviation_ = 0;
};

const bool registered = register_layer<Positions>("positions");

}  // namespace
}  // namespace starpipe::model
