// SPDX-License-Identifier: Apache-2.0
// As much of nvcuda::wmma as our kernels use; see cuda_runtime.h. Each lane has all of a fragment, and stores a share
// that is its own, so that what a lane reads before the others have stored is missing.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "cuda_bf16.h"

// NOLINTBEGIN(readability-identifier-naming)
namespace nvcuda::wmma {

struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major };

template <class Use, int M, int N, int K, class T, class Layout = void>
struct fragment {
  static_assert(M == 16 && N == 16 && K == 16);
  float rows[16][16];
};

/// What wmma requires of memory.
template <class T>
void require(const T* at, unsigned stride) {
  if (reinterpret_cast<std::uintptr_t>(at) % 32 == 0 && stride * sizeof(T) % 16 == 0) return;
  std::fprintf(stderr, "emulated CUDA: a fragment that is not aligned\n");
  std::abort();
}

template <class Fragment>
void fill_fragment(Fragment& fragment, float value) {
  for (auto& row : fragment.rows) {
    for (float& x : row) x = value;
  }
}

template <class Use, class T, class Layout>
void load_matrix_sync(fragment<Use, 16, 16, 16, T, Layout>& fragment, const T* from, unsigned stride) {
  require(from, stride);
  for (unsigned r = 0; r < 16; ++r) {
    for (unsigned c = 0; c < 16; ++c) {
      constexpr bool by_row = std::is_same_v<Layout, row_major>;
      fragment.rows[r][c] = static_cast<float>(by_row ? from[r * stride + c] : from[c * stride + r]);
    }
  }
}

template <class T>
void store_matrix_sync(T* to, const fragment<accumulator, 16, 16, 16, T>& fragment, unsigned stride, layout_t) {
  require(to, stride);
  for (unsigned i = threadIdx.x % 32; i < 16 * 16; i += 32) {
    to[i / 16 * stride + i % 16] = fragment.rows[i / 16][i % 16];
  }
}

template <class Sum, class Left, class Right>
void mma_sync(Sum& sum, const Left& left, const Right& right, const Sum& start) {
  for (unsigned r = 0; r < 16; ++r) {
    for (unsigned c = 0; c < 16; ++c) {
      float value = start.rows[r][c];
      for (unsigned k = 0; k < 16; ++k) value += left.rows[r][k] * right.rows[k][c];
      sum.rows[r][c] = value;
    }
  }
}

}  // namespace nvcuda::wmma
// NOLINTEND(readability-identifier-naming)
