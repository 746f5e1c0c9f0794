// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

namespace starpipe {

/// count / size, rounded up: how many groups of at most `size` things hold `count` of them. For count >= 0
/// and size > 0.
template <class Integer>
#ifdef __CUDACC__
__host__ __device__
#endif
    constexpr Integer
    ceil_div(Integer count, std::type_identity_t<Integer> size) {
  return (count + size - 1) / size;
}

}  // namespace starpipe
