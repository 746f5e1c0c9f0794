// SPDX-License-Identifier: Apache-2.0
// Packs: neighbouring elements that a thread moves with one instruction. Memory is only as fast as it can be
// when enough bytes are on their way, and an element a thread is not enough.
#pragma once

#include <cstdint>
#include <type_traits>

#include "codelets/cuda/kernels/element.hpp"

namespace starpipe::model::cuda {

/// The most that one instruction moves; packs begin at multiples of it.
inline constexpr int kPackBytes = sizeof(uint4);

/// Elements of a whole pack.
template <class T>
inline constexpr int kPack = kPackBytes / static_cast<int>(sizeof(T));

/// A whole pack, or one element.
template <class T, int N>
struct Pack {
  static_assert(N == 1 || N == kPack<T>);
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
/// To memory of the GPU, not of a block.
template <class T, int N>
__device__ void store_pack(T* to, const Pack<T, N>& pack) {
  if constexpr (N == 1) {
    *to = pack.at[0];
  } else {
    // What an assignment does, but never in parts, which compilers make of some assignments.
    __stwb(reinterpret_cast<uint4*>(to), __builtin_bit_cast(uint4, pack));
  }
}

/// What is computed with.
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

/// One element, which may be anywhere, or N in whole packs.
template <int N, class T>
__device__ Values<N> load(const T* from) {
  constexpr int kAtOnce = N < kPack<T> ? N : kPack<T>;
  Values<N> values;
  for (int i = 0; i < N; i += kAtOnce) {
    const Values<kAtOnce> some = floats(load_pack<kAtOnce>(from + i));
    for (int j = 0; j < kAtOnce; ++j) values[i + j] = some[j];
  }
  return values;
}
template <int N, class T>
__device__ void store(T* to, const Values<N>& values) {
  constexpr int kAtOnce = N < kPack<T> ? N : kPack<T>;
  for (int i = 0; i < N; i += kAtOnce) {
    Pack<T, kAtOnce> pack;
    for (int j = 0; j < kAtOnce; ++j) pack.at[j] = static_cast<T>(values[i + j]);
    store_pack(to + i, pack);
  }
}

/// Whether packs can begin at all those of the arguments that are pointers.
template <class... Arguments>
bool begin_packs(const Arguments&... arguments) {
  const auto begins = [](const auto& argument) {
    if constexpr (std::is_pointer_v<std::remove_cvref_t<decltype(argument)>>) {
      return reinterpret_cast<std::uintptr_t>(argument) % kPackBytes == 0;
    } else {
      return true;
    }
  };
  return (begins(arguments) && ...);
}

/// function(N), with the size of packs as a type: N of them, or 1 where they do not fit.
template <int N, class Function>
void with_packs(bool fit, Function function) {
  if (fit) {
    function(std::integral_constant<int, N>{});
  } else {
    function(std::integral_constant<int, 1>{});
  }
}

}  // namespace starpipe::model::cuda
