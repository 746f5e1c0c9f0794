// SPDX-License-Identifier: Apache-2.0
// The size of a warp, reductions over its lanes, and packs. A pack is 16 bytes of neighbouring elements,
// which a thread loads or stores with one instruction. Kernels that only move memory use packs, because one
// element per thread keeps too few bytes in flight for the full bandwidth.
#pragma once

#include <cstdint>
#include <type_traits>

#include "codelets/cuda/kernels/element.hpp"
#include "codelets/cuda/kernels/launch.cuh"

namespace starpipe::model::cuda {

inline constexpr int warp_size = 32;
inline constexpr unsigned all_lanes = 0xffffffffu;
/// Threads of a block, unless a kernel needs another number.
inline constexpr unsigned default_threads = 256;

// Reductions over all 32 lanes, in a fixed order. Every lane gets the result.
template <class T>  // float or double
__device__ T warp_sum(T value) {
  for (int distance = warp_size / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(all_lanes, value, distance);
  }
  return value;
}
__device__ inline float warp_max(float value) {
  for (int distance = warp_size / 2; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(all_lanes, value, distance));
  }
  return value;
}

/// The largest number of bytes that one instruction moves. Packs begin at multiples of it.
inline constexpr int pack_bytes = sizeof(uint4);

/// Elements in a pack of T.
template <class T>
inline constexpr int pack_size = pack_bytes / static_cast<int>(sizeof(T));

/// A pack, or with N = 1 a single element.
template <class T, int N>
struct Pack {
  static_assert(N == 1 || N == pack_size<T>);
  T at[N];
};

template <int N, class T>
__device__ Pack<T, N> load_pack(const T* from) {
  if constexpr (N == 1) {
    return {*from};
  } else {
    return __builtin_bit_cast(Pack<T, N>, *reinterpret_cast<const uint4*>(from));
  }
}
/// Stores to global memory, not to shared memory.
template <class T, int N>
__device__ void store_pack(T* to, const Pack<T, N>& pack) {
  if constexpr (N == 1) {
    *to = pack.at[0];
  } else {
    // As an assignment, but always one instruction: compilers split some assignments into smaller stores.
    __stwb(reinterpret_cast<uint4*>(to), __builtin_bit_cast(uint4, pack));
  }
}

/// The N elements of a pack as floats, to compute with.
template <int N>
struct Values {
  float at[N];
  __device__ float& operator[](int i) { return at[i]; }
  __device__ float operator[](int i) const { return at[i]; }
};

template <class T, int N>
__device__ Values<N> floats(const Pack<T, N>& pack) {
  Values<N> values;
  for (int i = 0; i < N; ++i) values[i] = static_cast<float>(pack.at[i]);
  return values;
}

/// Loads N elements as floats: one element from any address, or N elements in whole packs.
template <int N, class T>
__device__ Values<N> load(const T* from) {
  constexpr int step = N < pack_size<T> ? N : pack_size<T>;
  Values<N> values;
  for (int i = 0; i < N; i += step) {
    const Values<step> some = floats(load_pack<step>(from + i));
    for (int j = 0; j < step; ++j) values[i + j] = some[j];
  }
  return values;
}
/// Rounds N floats to T and stores them: one element to any address, or N elements in whole packs.
template <int N, class T>
__device__ void store(T* to, const Values<N>& values) {
  constexpr int step = N < pack_size<T> ? N : pack_size<T>;
  for (int i = 0; i < N; i += step) {
    Pack<T, step> pack;
    for (int j = 0; j < step; ++j) pack.at[j] = static_cast<T>(values[i + j]);
    store_pack(to + i, pack);
  }
}

/// True if all pointers among the arguments are multiples of pack_bytes. Other arguments are ignored.
template <class... Arguments>
bool pack_aligned(const Arguments&... arguments) {
  const auto aligned = [](const auto& argument) {
    if constexpr (std::is_pointer_v<std::remove_cvref_t<decltype(argument)>>) {
      return reinterpret_cast<std::uintptr_t>(argument) % pack_bytes == 0;
    } else {
      return true;
    }
  };
  return (aligned(arguments) && ...);
}

/// Calls `function` with the size of packs as an integral_constant: N when packs fit the arrays, else 1.
template <int N, class Function>
void with_pack_size(bool packs_fit, Function function) {
  if (packs_fit) {
    function(std::integral_constant<int, N>{});
  } else {
    function(std::integral_constant<int, 1>{});
  }
}

}  // namespace starpipe::model::cuda
