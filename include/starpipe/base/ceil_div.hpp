// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

namespace starpipe {

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
