// SPDX-License-Identifier: Apache-2.0
#include "codelets/cuda/kernels/arithmetic.hpp"
#include "codelets/cuda/kernels/device.hpp"
#include "codelets/cuda/kernels/element.hpp"
#include "codelets/cuda/kernels/for_each.cuh"
#include "starpipe/model/cuda_layer.hpp"

namespace starpipe::model::cuda {
namespace {

/// y = gelu(x), for for_each_pack().
template <class T>
struct Forward {
  const T* x;
  T* y;
  template <int N>
  __device__ void run(std::size_t i) const {
    Values<N> v = load<N>(x + i);
    for (int k = 0; k < N; ++k) v[k] = gelu(v[k]);
    store(y + i, v);
  }
};

/// dx = dy gelu'(x), for for_each_pack().
template <class T>
struct Backward {
  const T* x;
  const T* dy;
  T* dx;
  template <int N>
  __device__ void run(std::size_t i) const {
    const Values<N> v = load<N>(x + i);
    Values<N> d = load<N>(dy + i);
    for (int k = 0; k < N; ++k) d[k] *= gelu_slope(v[k]);
    store(dx + i, d);
  }
};

/// codelets/cpu/gelu.cpp on a GPU.
template <class T>
class Gelu final : public CudaLayer {
 public:
  explicit Gelu(const LayerSpec& spec) : count_(spec.rows * spec.columns) {}

  void forward(const Context& on, ConstMemory /*parameters*/, ConstMemory input, Memory output, Memory stash,
               FloatView /*scratch*/) const noexcept override {
    keep_input(on, "gelu F", input, stash, count_ * sizeof(T));
    for_each_pack<Forward<T>, pack_size<T>>(on, "gelu F", count_, input.as<T>(), output.as<T>());
  }

  void backward_input(const Context& on, ConstMemory /*parameters*/, ConstMemory stash,
                      ConstMemory output_gradient, Memory input_gradient,
                      FloatView /*scratch*/) const noexcept override {
    for_each_pack<Backward<T>, pack_size<T>>(on, "gelu B", count_, stash.as<T>(), output_gradient.as<T>(),
                                             input_gradient.as<T>());
  }

 private:
  std::size_t count_;
};

const bool registered = register_implementation<Gelu>("gelu");

}  // namespace
}  // namespace starpipe::model::cuda
