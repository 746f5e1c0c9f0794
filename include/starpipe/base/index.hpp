// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <type_traits>

namespace starpipe {

/// Returns the index in a container of the stage, micro-batch, worker, ... with this number. Such numbers are
/// ints >= 0.
constexpr std::size_t index(int number) { return static_cast<std::size_t>(number); }

/// Returns the index in a container that has an element for each value of an enumeration.
template <class Enum>
requires std::is_enum_v<Enum>
constexpr std::size_t index(Enum value) { return static_cast<std::size_t>(value); }

/// `count` / `size`, rounded up: the number of parts of `size` that hold `count`. `count` is not negative,
/// and `size` is positive.
template <class Integer>
#ifdef __CUDACC__
__host__ __device__
#endif
    constexpr Integer
    ceil_div(Integer count, std::type_identity_t<Integer> size) {
  return (count + size - 1) / size;
}

}  // namespace starpipe
