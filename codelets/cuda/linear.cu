// SPDX-License-Identifier: Apache-2.0
#include "codelets/cuda/kernels.cuh"
#include "codelets/cuda/multiply.hpp"
#include "starpipe/model/cuda_twin.hpp"

namespace starpipe::model::cuda {
namespace {

/// Every row is the bias, for the product to be added to.
template <class T>
struct BiasRows {
  const T* bias;
  T* y;
  std::size_t columns;
  __device__ void operator()(std::size_t i) const { y[i] = bias[i % columns]; }
};

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

  std::size_t scratch_size() const override { return bias_ ? sum_rows_scratch(outputs_) : 0; }

  void forward(const Context& on, ConstMemory parameters, ConstMemory input, Memory output, Memory stash,
               std::span<float> /*scratch*/) const noexcept override {
    check(cudaMemcpyAsync(stash.data(), input.data(), rows_ * inputs_ * sizeof(T), cudaMemcpyDeviceToDevice,
                          on.stream),
          "linear F");
    T* const y = output.as<T>();
    if (bias_) {
      const T* bias = parameters.as<T>() + inputs_ * outputs_;
      for_each(on, "linear F", rows_ * outputs_, BiasRows<T>{bias, y, outputs_});
    }
    multiply<T>(on, compute_, rows_, outputs_, inputs_, {input.as<T>(), inputs_}, weight(parameters, false),
                bias_ ? 1.0f : 0.0f, y, outputs_);
  }

  void backward_input(const Context& on, ConstMemory parameters, ConstMemory /*stash*/,
                      ConstMemory output_gradient, Memory input_gradient,
                      std::span<float> /*scratch*/) const noexcept override {
    multiply<T>(on, compute_, rows_, inputs_, outputs_, {output_gradient.as<T>(), outputs_},
                weight(parameters, true), 0, input_gradient.as<T>(), inputs_);
  }

  void backward_weights(const Context& on, ConstMemory stash, ConstMemory output_gradient,
                        std::span<float> parameter_gradient,
                        std::span<float> scratch) const noexcept override {
    const T* input = stash.as<T>();
    const T* dy = output_gradient.as<T>();
    float* dw = parameter_gradient.data();
    if (conv1d_) {
      multiply<T>(on, compute_, inputs_, outputs_, rows_, {input, inputs_, true}, {dy, outputs_}, 1, dw,
                  outputs_);
    } else {
      multiply<T>(on, compute_, outputs_, inputs_, rows_, {dy, outputs_, true}, {input, inputs_}, 1, dw,
                  inputs_);
    }
    if (bias_) {
      sum_rows(on, "linear W", rows_, outputs_, Elements<T>{dy}, dw + inputs_ * outputs_, scratch);
    }
  }

 private:
  /// The weight as the [inputs, outputs] operand, or its transpose.
  Matrix<T> weight(ConstMemory parameters, bool transposed) const noexcept {
    return {parameters.as<T>(), conv1d_ ? outputs_ : inputs_, conv1d_ == transposed};
  }

  std::size_t rows_;
  std::size_t inputs_;
  std::size_t outputs_;
  bool bias_;
  bool conv1d_;
  cublasComputeType_t compute_;
};

const bool registered = register_cuda_layer("linear", [](const LayerSpec& spec, Precision precision) {
  return make_twin<CudaLayer, Linear>(precision, spec, precision);
});

}  // namespace
}  // namespace starpipe::model::cuda
