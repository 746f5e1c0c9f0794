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
      : rows_(spec.rows),
        inputs_(spec.columns),
        outputs_(size_option(spec, "outputs")),
        bias_(option(spec, "bias", 1) != 0),
        conv1d_(option(spec, "conv1d", 0) != 0),
        compute_(compute_type(precision)) {}

  std::size_t scratch_size() const override {
    return std::max({multiply_scratch(rows_, outputs_), multiply_scratch(rows_, inputs_),
                     multiply_scratch(inputs_, outputs_), bias_ ? column_sums_scratch(outputs_) : 0});
  }

  void forward(const Context& on, ConstMemory parameters, ConstMemory input, Memory output, Memory stash,
               FloatView scratch) const noexcept override {
    keep_input(on, "linear F", input, stash, rows_ * inputs_ * sizeof(T));
    const T* const bias = bias_ ? parameters.as<T>() + inputs_ * outputs_ : nullptr;
    multiply<T, T>(on, compute_, {input.as<T>(), rows_, inputs_}, weight(parameters, false), 0,
                   {output.as<T>(), rows_, outputs_}, bias, scratch);
  }

  void backward_input(const Context& on, ConstMemory parameters, ConstMemory /*stash*/,
                      ConstMemory output_gradient, Memory input_gradient,
                      FloatView scratch) const noexcept override {
    multiply<T, T>(on, compute_, {output_gradient.as<T>(), rows_, outputs_}, weight(parameters, true), 0,
                   {input_gradient.as<T>(), rows_, inputs_}, nullptr, scratch);
  }

  void backward_weights(const Context& on, ConstMemory stash, ConstMemory output_gradient,
                        FloatView parameter_gradient, FloatView scratch) const noexcept override {
    const Matrix<const T> x{stash.as<T>(), rows_, inputs_};
    const Matrix<const T> dy{output_gradient.as<T>(), rows_, outputs_};
    float* const dw = parameter_gradient.data();
    if (conv1d_) {
      multiply<T, float>(on, compute_, transpose(x), dy, 1, {dw, inputs_, outputs_}, nullptr, scratch);
    } else {
      multiply<T, float>(on, compute_, transpose(dy), x, 1, {dw, outputs_, inputs_}, nullptr, scratch);
    }
    if (bias_) {
      add_column_sums(on, "linear W", rows_, outputs_, Elements<T>{dy.data}, dw + inputs_ * outputs_,
                      scratch);
    }
  }

 private:
  /// The weight as an [inputs, outputs] operand, or with `transposed` as [outputs, inputs].
  Matrix<const T> weight(ConstMemory parameters, bool transposed) const noexcept {
    if (conv1d_) return {parameters.as<T>(), inputs_, outputs_, transposed};
    return {parameters.as<T>(), outputs_, inputs_, !transposed};
  }

  std::size_t rows_;
  std::size_t inputs_;
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
