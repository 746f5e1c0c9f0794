// SPDX-License-Identifier: Apache-2.0
// Elementwise kernels, and loops with several loads in flight. Elements are stored as T; functions compute in
// float.
#pragma once

#include <cstddef>

#include "codelets/cuda/kernels/device.hpp"
#include "codelets/cuda/kernels/launch.cuh"
#include "codelets/cuda/kernels/warp.cuh"
#include "starpipe/base/index.hpp"

namespace starpipe::model::cuda {

/// Calls function(i) for each i in [0, count), each on a thread of its own.
template <class Function>
__global__ void each(std::size_t count, Function function) {
  const std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) function(i);
}
template <class Function>
void for_each(const Context& on, const char* name, std::size_t count, Function function) noexcept {
  if (count == 0) return;
  const dim3 blocks(static_cast<unsigned>(ceil_div(count, default_threads)));
  launch(on, name, {blocks, dim3(default_threads)}, each<Function>, count, function);
}

/// An array that for_each_element() writes without reading it.
template <class T>
struct Out {
  T* data;
};
template <class T>
Out(T*) -> Out<T>;

// `read` returns N elements of the array, from the i-th on, as floats: zeros for an Out<T>, which is not
// read. `write` stores them, except for a `const T*`, which is only read.
template <int N, class T>
__device__ Values<N> read(T* array, std::size_t i) {
  return load<N>(array + i);
}
template <int N, class T>
__device__ Values<N> read(Out<T> /*array*/, std::size_t /*i*/) {
  return {};
}
template <int N, class T>
__device__ void write(const T* /*array*/, std::size_t /*i*/, const Values<N>& /*values*/) {}
template <int N, class T>
__device__ void write(T* array, std::size_t i, const Values<N>& values) {
  store(array + i, values);
}
template <int N, class T>
__device__ void write(Out<T> array, std::size_t i, const Values<N>& values) {
  store(array.data + i, values);
}

/// Applies the function to N elements of each array, from the i-th on.
template <int N, class Function, class... Arrays>
__device__ void apply(std::size_t i, const Function& function, Arrays... arrays) {
  const auto apply_to = [&](auto... values) {
    for (int k = 0; k < N; ++k) function(values[k]...);
    (write<N>(arrays, i, values), ...);
  };
  apply_to(read<N>(arrays, i)...);
}

template <int N, class Function, class... Arrays>
__global__ void each_element(std::size_t count, Function function, Arrays... arrays) {
  std::size_t i = (std::size_t{blockIdx.x} * blockDim.x + threadIdx.x) * N;
  if (i + N <= count) return apply<N>(i, function, arrays...);
  for (; i < count; ++i) apply<1>(i, function, arrays...);
}

/// Calls function(x...) for each i in [0, count). The x are the i-th elements of the arrays, as floats. An
/// array is a `const T*`, whose elements are only read; a `T*`, whose elements are read, and written with the
/// value that the function leaves in x; or an Out<T>, whose elements are only written. T is the arrays'
/// smallest type. A thread handles a pack of T, or a single element if an array is not aligned to packs.
template <class T, class Function, class... Arrays>
void for_each_element(const Context& on, const char* name, std::size_t count, const Function& function,
                      Arrays... arrays) noexcept {
  if (count == 0) return;
  const auto address = [](auto array) {
    if constexpr (std::is_pointer_v<decltype(array)>) {
      return array;
    } else {
      return array.data;
    }
  };
  with_pack_size<pack_size<T>>(pack_aligned(address(arrays)...), [&](auto size) {
    void (*const kernel)(std::size_t, Function, Arrays...) = each_element<size, Function, Arrays...>;
    const std::size_t blocks = ceil_div(ceil_div(count, size), default_threads);
    launch(on, name, {dim3(static_cast<unsigned>(blocks)), dim3(default_threads)}, kernel, count, function,
           arrays...);
  });
}

/// Calls use(load(i)) for i = first, first + step, ... < last, in this order. Runs `InFlight` loads (a power
/// of two) before the first use. No condition separates the loads, so the memory system works on all of them
/// at once. Handles the rest at the end in the same way with half as many loads, and so on.
template <int InFlight, class Load, class Use>
__device__ void each_loaded(std::size_t first, std::size_t last, std::size_t step, Load load, Use use) {
#pragma unroll 1
  for (; first + (InFlight - 1) * step < last; first += InFlight * step) {
    decltype(load(first)) loaded[InFlight];
#pragma unroll
    for (unsigned i = 0; i < InFlight; ++i) loaded[i] = load(first + i * step);
#pragma unroll
    for (unsigned i = 0; i < InFlight; ++i) use(loaded[i]);
  }
  if constexpr (InFlight > 1) each_loaded<InFlight / 2>(first, last, step, load, use);
}

}  // namespace starpipe::model::cuda
