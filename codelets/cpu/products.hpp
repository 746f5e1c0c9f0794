// SPDX-License-Identifier: Apache-2.0
// Matrix products on a core. A build has one of the implementations products_onednn.cpp and
// products_cblas.cpp (option STARPIPE_PRODUCTS of CMake).
#pragma once

#include <cstddef>

namespace starpipe::model::cpu {

/// An operand of multiply(), stored row-major.
struct Matrix {
  const float* data;
  std::size_t stride;       ///< floats from row to row of the stored matrix
  bool transposed = false;  ///< true if the operand is the transpose of the stored matrix
};

/// Says whether a product replaces C, or is added to C.
enum class Result { replaces, is_added };

/// C = A B, or C += A B. A is m x k, B k x n and C m x n, row-major with `c_stride` floats from row to row.
/// Without is_added, C may hold anything, NaN included. The bits of C depend on sizes, strides and numbers,
/// and not on addresses. Thread-safe. Uses the calling thread only, with one exception: an OpenBLAS uses as
/// many threads as it was told to (runtime/host/product_library.hpp).
void multiply(std::size_t m, std::size_t n, std::size_t k, Matrix a, Matrix b, Result result, float* c,
              std::size_t c_stride) noexcept;

}  // namespace starpipe::model::cpu
