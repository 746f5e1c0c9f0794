// SPDX-License-Identifier: Apache-2.0
#include "codelets/cuda/backend/stream_backend.hpp"

#include <limits>

#include "codelets/cuda/kernels/device.hpp"
#include "codelets/cuda/kernels/element.hpp"
#include "codelets/cuda/kernels/for_each.cuh"
#include "starpipe/model/cuda_layer.hpp"

namespace starpipe::model::cuda {
namespace {

constexpr float largest_float = std::numeric_limits<float>::max();

/// sum = a + b, for for_each_pack().
template <class T>
struct Sum {
  const T* a;
  const T* b;
  T* sum;
  template <int N>
  __device__ void run(std::size_t i) const {
    Values<N> x = load<N>(a + i);
    const Values<N> y = load<N>(b + i);
    for (int k = 0; k < N; ++k) x[k] += y[k];
    store(sum + i, x);
  }
};

/// to = from, rounded to bf16, for for_each_pack().
struct Rounded {
  const float* from;
  Bf16* to;
  template <int N>
  __device__ void run(std::size_t i) const {
    store(to + i, load<N>(from + i));
  }
};

/// *found = 1 if a number is infinite or NaN, for for_each_pack(). All threads that write, write the same.
template <class T>
struct NonFinite {
  const T* values;
  volatile float* found;
  template <int N>
  __device__ void run(std::size_t i) const {
    const Values<N> x = load<N>(values + i);
    bool finite = true;
    for (int k = 0; k < N; ++k) finite = finite && fabsf(x[k]) <= largest_float;  // false for NaN
    if (!finite) *found = 1;
  }
};

template <class T>
void find_nonfinite_in(const Context& on, ConstMemory values, std::size_t count, float& found) noexcept {
  with_pack_size<pack_size<T>>(pack_aligned(values.as<T>()), [&](auto size) {
    for_each(on, "search for values that are not finite", ceil_div(count, size),
             EachPack<size, NonFinite<T>>{count, {values.as<T>(), &found}});
  });
}

template <class T>
void add_arrays(const Context& on, ConstMemory a, ConstMemory b, Memory sum) noexcept {
  for_each_pack<Sum<T>, pack_size<T>>(on, "add", sum.size() * sizeof(float) / sizeof(T), a.as<T>(), b.as<T>(),
                                      sum.as<T>());
}

}  // namespace

void StreamBackend::zero(Memory memory) const noexcept {
  check(cudaMemsetAsync(memory.data(), 0, memory.floats().size_bytes(), on_.stream), "zero");
}

void StreamBackend::copy(ConstMemory from, Memory to) const noexcept {
  check(cudaMemcpyAsync(to.data(), from.data(), from.floats().size_bytes(), cudaMemcpyDeviceToDevice,
                        on_.stream),
        "copy");
}

void StreamBackend::add(Precision precision, ConstMemory a, ConstMemory b, Memory sum) const noexcept {
  if (precision == Precision::bf16) {
    add_arrays<Bf16>(on_, a, b, sum);
  } else {
    add_arrays<float>(on_, a, b, sum);
  }
}

void StreamBackend::copy_columns(const std::byte* from, std::size_t from_stride, std::byte* to,
                                 std::size_t to_stride, std::size_t columns,
                                 std::size_t rows) const noexcept {
  check(cudaMemcpy2DAsync(to, to_stride, from, from_stride, columns, rows, cudaMemcpyDeviceToDevice,
                          on_.stream),
        "copy of columns");
}

void StreamBackend::round(ConstFloatView from, Memory to) const noexcept {
  for_each_pack<Rounded, pack_size<Bf16>>(on_, "round", from.size(), from.data(), to.as<Bf16>());
}

void StreamBackend::find_nonfinite(Precision precision, ConstMemory values, std::size_t count,
                                   float& found) const noexcept {
  if (precision == Precision::bf16) {
    find_nonfinite_in<Bf16>(on_, values, count, found);
  } else {
    find_nonfinite_in<float>(on_, values, count, found);
  }
}

void StreamBackend::forward(const Layer& layer, ConstMemory parameters, ConstMemory input, Memory output,
                            Memory stash, Memory scratch) const noexcept {
  layer.cuda()->forward(on_, parameters, input, output, stash, scratch.floats());
}

void StreamBackend::backward_input(const Layer& layer, ConstMemory parameters, ConstMemory stash,
                                   ConstMemory output_gradient, Memory input_gradient,
                                   Memory scratch) const noexcept {
  layer.cuda()->backward_input(on_, parameters, stash, output_gradient, input_gradient, scratch.floats());
}

void StreamBackend::backward_weights(const Layer& layer, ConstMemory stash, ConstMemory output_gradient,
                                     FloatView parameter_gradient, Memory scratch) const noexcept {
  layer.cuda()->backward_weights(on_, stash, output_gradient, parameter_gradient, scratch.floats());
}

void StreamBackend::forward(const Loss& loss, ConstMemory input, ConstFloatView target, Memory stash,
                            FloatView mean, Memory scratch) const noexcept {
  loss.cuda()->forward(on_, input, target, stash, mean, scratch.floats());
}

void StreamBackend::backward_input(const Loss& loss, ConstMemory stash, float scale, Memory input_gradient,
                                   Memory /*scratch*/) const noexcept {
  loss.cuda()->backward_input(on_, stash, scale, input_gradient);
}

}  // namespace starpipe::model::cuda
