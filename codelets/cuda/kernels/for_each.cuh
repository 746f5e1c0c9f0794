// SPDX-License-Identifier: Apache-2.0
// Elementwise kernels, and loops with several loads in flight. Elements are stored as T and computed with in
// float.
#pragma once

#include <cstddef>

#include "codelets/cuda/kernels/device.hpp"
#include "codelets/cuda/kernels/launch.cuh"
#include "codelets/cuda/kernels/warp.cuh"
#include "starpipe/base/index.hpp"

namespace starpipe::model::cuda {

/// Calls function(i) for each i in [0, count), one thread each.
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

/// Calls function.run<N>(i) for the pack that begins at element i. The last pack may have fewer than N
/// elements: then function.run<1>(i) is called for each of them.
template <int N, class Function>
struct EachPack {
  std::size_t count;  ///< elements
  Function function;
  __device__ void operator()(std::size_t pack) const {
    std::size_t i = pack * N;
    if (i + N <= count) {
      function.template run<N>(i);
    } else {
      for (; i < count; ++i) function.template run<1>(i);
    }
  }
};

/// Makes a Function{arguments...} and covers the elements [0, count) with calls of its run<size>(i), each of
/// which does the elements [i, i + size). `size` is N, the elements of a pack of the smallest type. It is 1
/// for the rest at the end, and everywhere when a pointer among the arguments is not aligned to packs.
template <class Function, int N, class... Arguments>
void for_each_pack(const Context& on, const char* name, std::size_t count,
                   const Arguments&... arguments) noexcept {
  with_pack_size<N>(pack_aligned(arguments...), [&](auto size) {
    for_each(on, name, ceil_div(count, size), EachPack<size, Function>{count, {arguments...}});
  });
}

/// Calls use(load(i)) for i = first, first + step, ... < last, in this order. Runs `InFlight` loads, a power
/// of two, before the first use, and no condition separates them, so the memory system works on all of them
/// at once. The rest at the end is done in the same way with half as many loads, and so on.
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
