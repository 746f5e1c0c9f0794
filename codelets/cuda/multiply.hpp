// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "codelets/cuda/check.hpp"
#include "codelets/cuda/context.hpp"
#include "codelets/cuda/element.hpp"
#include "starpipe/model/precision.hpp"

namespace starpipe::model::cuda {

template <class T>
inline constexpr cudaDataType_t kDataType = CUDA_R_32F;
template <>
inline constexpr cudaDataType_t kDataType<Bf16> = CUDA_R_16BF;

/// What cuBLAS multiplies with; it sums in fp32.
inline cublasComputeType_t compute_type(Precision precision) noexcept {
  return precision == Precision::tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

/// An operand, row-major.
template <class T>
struct Matrix {
  const T* data;
  std::size_t stride;  ///< elements from row to row, as stored
  bool transposed = false;
};

/// C = op(A) op(B) + beta * C, row-major; C is m x n, the inner dimension k. Products are summed in fp32.
template <class T, class Sum>
void multiply(const Context& on, cublasComputeType_t compute, std::size_t m, std::size_t n, std::size_t k,
              Matrix<T> a, Matrix<T> b, float beta, Sum* c, std::size_t c_stride) noexcept {
  const auto i = [](std::size_t value) { return static_cast<int>(value); };
  const auto op = [](const Matrix<T>& matrix) { return matrix.transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
  const float alpha = 1;
  // cuBLAS is column-major: to it, each of these is its transpose, and C' = B' A'.
  check(cublasGemmEx(on.cublas, op(b), op(a), i(n), i(m), i(k), &alpha, b.data, kDataType<T>, i(b.stride),
                     a.data, kDataType<T>, i(a.stride), &beta, c, kDataType<Sum>, i(c_stride), compute,
                     CUBLAS_GEMM_DEFAULT),
        "matrix product");
}

}  // namespace starpipe::model::cuda
