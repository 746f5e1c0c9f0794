// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "codelets/cuda/device/context.hpp"
#include "codelets/cuda/kernels/element.hpp"
#include "starpipe/model/precision.hpp"

namespace starpipe::model::cuda {

/// What cuBLAS multiplies with; it sums in fp32.
inline cublasComputeType_t compute_type(Precision precision) noexcept {
  return precision == Precision::tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

/// A matrix as stored: row-major, without gaps.
template <class T>
struct Matrix {
  T* data;
  std::size_t rows;
  std::size_t columns;
  bool transposed = false;  ///< whether the product has its transpose
};

template <class T>
Matrix<T> transpose(const Matrix<T>& matrix) noexcept {
  return {matrix.data, matrix.rows, matrix.columns, !matrix.transposed};
}

/// Floats that cuBLAS may use beside a product of m x n: where the inner dimension is long and the product
/// small, several blocks make a part each of the same elements. 16 parts, but at most the 32 MiB that NVIDIA
/// recommends for Hopper (4 MiB for others): what is larger fills a GPU without.
constexpr std::size_t workspace_size(std::size_t m, std::size_t n) noexcept {
  return std::min(16 * m * n, (std::size_t{32} << 20u) / sizeof(float));
}

/// Floats of scratch of a product of m x n: the workspace at a multiple of 256 bytes, and a copy of the bias.
constexpr std::size_t multiply_scratch(std::size_t m, std::size_t n) noexcept {
  return workspace_size(m, n) + n + 256 / sizeof(float);
}

/// C = op(A) op(B) + beta * C, plus the bias (one number a column; may be null) in each row. Products are
/// summed in fp32, in an order that depends on the shapes, the arrays' alignment and the kind of GPU.
/// `scratch`: multiply_scratch() of C's shape. Where cuBLAS has no algorithm that adds a bias, a kernel does
/// after the product, which is then rounded twice.
///
/// cuBLAS is asked for an algorithm when a thread has its first product of a kind, and the thread keeps it:
/// only then is memory of the host allocated.
template <class T, class Sum>
void multiply(const Context& on, cublasComputeType_t compute, const Matrix<const T>& a,
              const Matrix<const T>& b, float beta, const Matrix<Sum>& c, const Sum* bias,
              std::span<float> scratch) noexcept;

}  // namespace starpipe::model::cuda
