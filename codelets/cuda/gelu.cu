// SPDX-License-Identifier: Apache-2.0
#include "codelets/cuda/kernels.cuh"
#include "starpipe/model/cuda_twin.hpp"

namespace starpipe::model::cuda {
namespace {

template <class T>
struct Forward {
  const T* x;
  T* y;
  T* kept;
  __device__ void operator()(std::size_t i) const {
    kept[i] = x[i];
    y[i] = static_cast<T>(gelu(static_cast<float>(x[i])));
  }
};

template <class T>
struct Backward {
  const T* x;
  const T* dy;
  T* dx;
  __device__ void operator()(std::size_t i) const {
    dx[i] = static_cast<T>(static_cast<float>(dy[i]) * gelu_slope(static_cast<float>(x[i])));
  }
};

/// codelets/cpu/gelu.cpp on a GPU.
class Gelu final : public CudaLayer {
 public:
  explicit Gelu(const LayerSpec& spec) : count_(spec.rows * spec.columns) {}

  void forward(const Context& on, std::span<const float> /*parameters*/, std::span<const float> input,
               std::span<float> output, std::span<float> stash,
               std::span<float> /*scratch*/) const noexcept override {
    for_each(on, "gelu F", count_, Forward<float>{input.data(), output.data(), stash.data()});
  }

  void backward_input(const Context& on, std::span<const float> /*parameters*/, std::span<const float> stash,
                      std::span<const float> output_gradient, std::span<float> input_gradient,
                      std::span<float> /*scratch*/) const noexcept override {
    for_each(on, "gelu B", count_,
             Backward<float>{stash.data(), output_gradient.data(), input_gradient.data()});
  }

 private:
  std::size_t count_;
};

const bool registered = register_cuda_layer(
    "gelu", [](const LayerSpec& spec, Precision /*precision*/) { return std::make_shared<Gelu>(spec); });

}  // namespace
}  // namespace starpipe::model::cuda
