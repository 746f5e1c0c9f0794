// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "codelets/cpu/math.hpp"
#include "codelets/cpu/products.hpp"
#include "model/full_width.hpp"
#include "starpipe/model/layer.hpp"

namespace starpipe::model {
namespace {

using cpu::Bf16Product;
using cpu::Bf16Sizes;
using cpu::multiply;
using cpu::Result;

/// y = x W + b. Options: outputs; bias (default 1); conv1d (default 0): the weight is stored as [outputs,
/// inputs], as in torch.nn.Linear, or with conv1d as [inputs, outputs], as in GPT-2's Conv1D; deviation and
/// bias_deviation of the start values (default 0); parts (without conv1d and bias): tensors of [share of the
/// outputs, inputs], which lie one behind the other and so are one matrix. The stash is the input.
class Linear final : public Layer {
 public:
  explicit Linear(const LayerSpec& spec) : Layer(spec) {
    check_options(spec, {"outputs"}, {"bias", "conv1d", "deviation", "bias_deviation", "parts"});
    outputs_ = size_option(spec, "outputs");
    bias_ = option(spec, "bias", 1) != 0;
    conv1d_ = option(spec, "conv1d", 0) != 0;
    deviation_ = option(spec, "deviation", 0);
    bias_deviation_ = option(spec, "bias_deviation", 0);
    parts_ = spec.parts;
    std::size_t shared = 0;
    for (const auto& [part, outputs] : parts_) shared += outputs;
    check_fit(spec, parts_.empty() || (shared == outputs_ && !bias_ && !conv1d_),
              "parts do not fit outputs, bias or conv1d");
  }

  std::size_t output_columns() const override { return outputs_; }
  bool keeps_input() const override { return true; }
  double flops() const override {
    return 2.0 * static_cast<double>(rows_) * static_cast<double>(columns_) * static_cast<double>(outputs_);
  }

  std::vector<Parameter> parameters() const override {
    std::vector<Parameter> result;
    for (const auto& [part, outputs] : parts_) {
      result.push_back({name_ + "." + part + ".weight", {outputs, columns_}, deviation_, 0});
    }
    if (!parts_.empty()) return result;
    result.push_back({name_ + ".weight",
                      conv1d_ ? std::vector{columns_, outputs_} : std::vector{outputs_, columns_}, deviation_,
                      0});
    if (bias_) result.push_back({name_ + ".bias", {outputs_}, bias_deviation_, 0});
    return result;
  }

  void forward(const Forward& pass) const noexcept override {
    cpu::keep_input(pass.input, pass.stash);
    if (bias_) {
      const float* bias = pass.parameters.data() + columns_ * outputs_;
      for (std::size_t r = 0; r < rows_; ++r) std::copy_n(bias, outputs_, pass.output.data() + r * outputs_);
    }
    multiply(rows_, outputs_, columns_, {pass.input.data(), columns_}, weight(pass.parameters),
             bias_ ? Result::is_added : Result::replaces, pass.output.data(), outputs_);
  }

  void backward_input(const Backward& pass) const noexcept override {
    cpu::Matrix transposed = weight(pass.parameters);
    transposed.transposed = !transposed.transposed;
    multiply(rows_, columns_, outputs_, {pass.output_gradient.data(), outputs_}, transposed, Result::replaces,
             pass.input_gradient.data(), columns_);
  }

  void backward_weights(const Weights& pass) const noexcept override {
    const float* x = pass.stash.data();
    const float* dy = pass.output_gradient.data();
    float* dw = pass.parameter_gradient.data();
    if (conv1d_) {
      multiply(columns_, outputs_, rows_, {x, columns_, true}, {dy, outputs_}, Result::is_added, dw,
               outputs_);
    } else {
      multiply(outputs_, columns_, rows_, {dy, outputs_, true}, {x, columns_}, Result::is_added, dw,
               columns_);
    }
    add_bias_gradient(dy, dw);
  }

  void forward_bf16(const DevicePasses::Forward& pass) const noexcept override {
    cpu::keep_input(pass.input, pass.stash);
    const auto* const weight = pass.parameters.as<Bf16>();
    products_->forward(pass.input.as<Bf16>(), weight, bias_ ? weight + columns_ * outputs_ : nullptr,
                       pass.output.data(), pass.scratch);
  }

  void backward_input_bf16(const DevicePasses::Backward& pass) const noexcept override {
    products_->backward_input(pass.output_gradient.as<Bf16>(), pass.parameters.as<Bf16>(), nullptr,
                              pass.input_gradient.data(), pass.scratch);
  }

  void backward_weights_bf16(const DevicePasses::Weights& pass) const noexcept override {
    const auto* const x = pass.stash.as<Bf16>();
    const auto* const dy = pass.output_gradient.as<Bf16>();
    float* const dw = pass.parameter_gradient.data();
    products_->backward_weights(conv1d_ ? x : dy, conv1d_ ? dy : x, nullptr, dw, pass.scratch);
    add_bias_gradient(dy, dw);
  }

 private:
  struct Bf16Products {
    Bf16Product forward;
    Bf16Product backward_input;
    Bf16Product backward_weights;
  };

  std::optional<std::size_t> prepare_bf16() override {
    const std::size_t weight_stride = conv1d_ ? outputs_ : columns_;
    const auto y = Bf16Product::prepare({.m = rows_,
                                         .n = outputs_,
                                         .k = columns_,
                                         .a = {columns_},
                                         .b = {weight_stride, !conv1d_},
                                         .c_stride = outputs_,
                                         .to = Bf16Sizes::To::bf16,
                                         .bias = bias_});
    const auto dx = Bf16Product::prepare({.m = rows_,
                                          .n = columns_,
                                          .k = outputs_,
                                          .a = {outputs_},
                                          .b = {weight_stride, conv1d_},
                                          .c_stride = columns_,
                                          .to = Bf16Sizes::To::bf16});
    const auto dw = Bf16Product::prepare({.m = conv1d_ ? columns_ : outputs_,
                                          .n = weight_stride,
                                          .k = rows_,
                                          .a = {conv1d_ ? columns_ : outputs_, true},
                                          .b = {weight_stride},
                                          .c_stride = weight_stride,
                                          .to = Bf16Sizes::To::added_to_floats});
    if (!y || !dx || !dw) return std::nullopt;
    products_ = {*y, *dx, *dw};
    return std::max({y->scratch_size(), dx->scratch_size(), dw->scratch_size()});
  }

  /// Adds the sum of the rows of `dy` to the gradient of the bias, which lies behind the weight's.
  template <class Number>
  void add_bias_gradient(const Number* dy, float* dw) const noexcept {
    if (!bias_) return;
    at_full_width([&] {
      const std::size_t outputs = outputs_;
      float* __restrict db = dw + columns_ * outputs;
      for (std::size_t r = 0; r < rows_; ++r) {
        const Number* __restrict row = dy + r * outputs;
        for (std::size_t c = 0; c < outputs; ++c) db[c] += row[c];
      }
    });
  }

  /// Returns the weight as the [inputs, outputs] operand.
  cpu::Matrix weight(ConstFloatView parameters) const noexcept {
    return {parameters.data(), conv1d_ ? outputs_ : columns_, !conv1d_};
  }

  std::size_t outputs_ = 0;
  bool bias_ = true;
  bool conv1d_ = false;
  double deviation_ = 0;
  double bias_deviation_ = 0;
  std::vector<std::pair<std::string, std::size_t>> parts_;  ///< as in LayerSpec
  std::optional<Bf16Products> products_;                    ///< of the passes on bf16
};

const bool registered = register_layer<Linear>("linear");

}  // namespace
}  // namespace starpipe::model
