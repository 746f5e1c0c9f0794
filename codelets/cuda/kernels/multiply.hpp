// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "codelets/cuda/kernels/device.hpp"
#include "codelets/cuda/kernels/element.hpp"
#include "starpipe/model/memory_view.hpp"

namespace starpipe::model::cuda {

/// Returns the precision in which cuBLASLt multiplies. It sums in fp32.
inline cublasComputeType_t compute_type(Precision precision) noexcept {
  return precision == Precision::tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

/// An operand of a product, with the rows and columns of the stored matrix: row-major, without gaps.
template <class T>
struct Matrix {
  T* data;
  std::size_t rows;
  std::size_t columns;
  bool transposed = false;  ///< true if the operand is the transpose of the stored matrix
};

template <class T>
Matrix<T> transpose(const Matrix<T>& matrix) noexcept {
  return {matrix.data, matrix.rows, matrix.columns, !matrix.transposed};
}

/// Floats of cuBLASLt's workspace for an m x n product: enough for 16 partial sums of each element
/// (split-k, which occupies a GPU where the inner dimension is long and the product small), but at most the
/// 32 MiB that NVIDIA recommends for Hopper (4 MiB for others). Larger products occupy a GPU without split-k.
constexpr std::size_t workspace_size(std::size_t m, std::size_t n) noexcept {
  return std::min(16 * m * n, (std::size_t{32} << 20u) / sizeof(float));
}

/// Floats of scratch that multiply() needs for an m x n product: the workspace, a copy of the bias, and
/// room to align the workspace to 256 bytes.
constexpr std::size_t multiply_scratch(std::size_t m, std::size_t n) noexcept {
  return workspace_size(m, n) + n + 256 / sizeof(float);
}

/// C = A B + beta * C + bias. `bias` has a number for each column of C and is added to every row; it may be
/// null. Sums are in fp32, in an order that depends on the shapes, the arrays' alignment and the kind of GPU.
/// `scratch`: multiply_scratch() floats for C's shape. Where cuBLASLt has no algorithm that adds a bias, a
/// kernel adds it after the product, and a bf16 result is then rounded twice.
///
/// The first product of a kind (types, shapes, alignments) that a thread asks for makes cuBLASLt choose an
/// algorithm, which the thread keeps. Only that first call allocates memory of the host.
template <class T, class Sum>
void multiply(const Context& on, cublasComputeType_t compute, const Matrix<const T>& a,
              const Matrix<const T>& b, float beta, const Matrix<Sum>& c, const Sum* bias,
              FloatView scratch) noexcept;

}  // namespace starpipe::model::cuda
