// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "codelets/cuda/kernels/column_sums.cuh"
#include "codelets/cuda/kernels/device.hpp"
#include "codelets/cuda/kernels/element.hpp"
#include "codelets/cuda/kernels/multiply.hpp"
#include "starpipe/model/cuda_layer.hpp"

namespace starpipe::model::cuda {
namespace {

/// codelets/cpu/linear.cpp on a GPU.
template <class T>
class Linear final : public CudaLayer {
 public:
  Linear(const LayerSpec& spec, Precision precision)
      : CudaLayer(spec),
        outputs_(size_option(spec, "outputs")),
        bias_(option(spec, "bias", 1) != 0),
        conv1d_(option(spec, "conv1d", 0) != 0),
        compute_(compute_type(precision)) {}

  std::size_t scratch_size() const override {
    return std::max({multiply_scratch(rows_, outputs_), multiply_scratch(rows_, columns_),
                     multiply_scratch(columns_, outputs_), bias_ ? column_sums_scratch(outputs_) : 0});
  }

  void forward(const Context& on, const Forward& pass) const noexcept override {
    keep_input(on, "linear F", pass.input, pass.stash, rows_ * columns_ * sizeof(T));
    const T* const bias = bias_ ? pass.parameters.as<T>() + columns_ * outputs_ : nullptr;
    multiply<T, T>(on, compute_, {pass.input.as<T>(), rows_, columns_}, weight(pass.parameters, false), 0,
                   {pass.output.as<T>(), rows_, outputs_}, bias, pass.scratch);
  }

  void backward_input(const Context& on, const Backward& pass) const noexcept override {
    multiply<T, T>(on, compute_, {pass.output_gradient.as<T>(), rows_, outputs_},
                   weight(pass.parameters, true), 0, {pass.input_gradient.as<T>(), rows_, columns_}, nullptr,
                   pass.scratch);
  }

  void backward_weights(const Context& on, const Weights& pass) const noexcept override {
    const Matrix<const T> x{pass.stash.as<T>(), rows_, columns_};
    const Matrix<const T> dy{pass.output_gradient.as<T>(), rows_, outputs_};
    float* const dw = pass.parameter_gradient.data();
    if (conv1d_) {
      multiply<T, float>(on, compute_, transpose(x), dy, 1, {dw, columns_, outputs_}, nullptr, pass.scratch);
    } else {
      multiply<T, float>(on, compute_, transpose(dy), x, 1, {dw, outputs_, columns_}, nullptr, pass.scratch);
    }
    if (bias_) {
      add_column_sums(on, "linear W", rows_, outputs_, Elements<T>{dy.data}, dw + columns_ * outputs_,
                      pass.scratch);
    }
  }

 private:
  /// Returns the weight as an [inputs, outputs] operand, or with `transposed` as [outputs, inputs].
  Matrix<const T> weight(ConstMemory parameters, bool transposed) const noexcept {
    if (conv1d_) return {parameters.as<T>(), columns_, outputs_, transposed};
    return {parameters.as<T>(), outputs_, columns_, !transposed};
  }

  std::size_t outputs_;
  bool bias_;
  bool conv1d_;
  cublasComputeType_t compute_;
};

const bool registered = register_cuda_layer("linear", [](const LayerSpec& spec, Precision precision) {
  return make_for<CudaLayer, Linear>(precision, spec, precision);
});

}  // namespace
}  // namespace starpipe::model::cuda
