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

template <class T>
struct Element {
  const T* values;
  std::size_t columns;
  __device__ float operator()(std::size_t row, std::size_t column) const {
    return static_cast<float>(values[row * columns + column]);
  }
};

/// codelets/cpu/linear.cpp on a GPU.
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

  void forward(const Context& on, std::span<const float> parameters, std::span<const float> input,
               std::span<float> output, std::span<float> stash,
               std::span<float> /*scratch*/) const noexcept override {
    check(cudaMemcpyAsync(stash.data(), input.data(), rows_ * inputs_ * sizeof(float),
                          cudaMemcpyDeviceToDevice, on.stream),
          "linear F");
    if (bias_) {
      const float* bias = parameters.data() + inputs_ * outputs_;
      for_each(on, "linear F", rows_ * outputs_, BiasRows<float>{bias, output.data(), outputs_});
    }
    multiply<float>(on, compute_, rows_, outputs_, inputs_, {input.data(), inputs_},
                    weight(parameters, false), bias_ ? 1.0f : 0.0f, output.data(), outputs_);
  }

  void backward_input(const Context& on, std::span<const float> parameters, std::span<const float> /*stash*/,
                      std::span<const float> output_gradient, std::span<float> input_gradient,
                      std::span<float> /*scratch*/) const noexcept override {
    multiply<float>(on, compute_, rows_, inputs_, outputs_, {output_gradient.data(), outputs_},
                    weight(parameters, true), 0, input_gradient.data(), inputs_);
  }

  void backward_weights(const Context& on, std::span<const float> stash,
                        std::span<const float> output_gradient, std::span<float> parameter_gradient,
                        std::span<float> scratch) const noexcept override {
    const float* input = stash.data();
    const float* dy = output_gradient.data();
    float* dw = parameter_gradient.data();
    if (conv1d_) {
      multiply<float>(on, compute_, inputs_, outputs_, rows_, {input, inputs_, true}, {dy, outputs_}, 1, dw,
                      outputs_);
    } else {
      multiply<float>(on, compute_, outputs_, inputs_, rows_, {dy, outputs_, true}, {input, inputs_}, 1, dw,
                      inputs_);
    }
    if (bias_) {
      sum_rows(on, "linear W", rows_, outputs_, Element<float>{dy, outputs_}, dw + inputs_ * outputs_,
               scratch);
    }
  }

 private:
  /// The weight as the [inputs, outputs] operand, or its transpose.
  Matrix<float> weight(std::span<const float> parameters, bool transposed) const noexcept {
    return {parameters.data(), conv1d_ ? outputs_ : inputs_, conv1d_ == transposed};
  }

  std::size_t rows_;
  std::size_t inputs_;
  std::size_t outputs_;
  bool bias_;
  bool conv1d_;
  cublasComputeType_t compute_;
};

const bool registered = register_cuda_layer("linear", [](const LayerSpec& spec, Precision precision) {
  return std::make_shared<Linear>(spec, precision);
});

}  // namespace
}  // namespace starpipe::model::cuda
