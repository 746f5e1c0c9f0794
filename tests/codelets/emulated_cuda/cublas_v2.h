// SPDX-License-Identifier: Apache-2.0
// As much of cuBLAS as we use, by CBLAS; see cuda_runtime.h.
#pragma once

#include <cblas.h>

#include <bit>
#include <cstdint>
#include <vector>

#include "cuda_bf16.h"
#include "cuda_runtime.h"

// NOLINTBEGIN(readability-identifier-naming)

using cublasHandle_t = void*;
enum cublasStatus_t { CUBLAS_STATUS_SUCCESS, CUBLAS_STATUS_INVALID_VALUE };
enum cublasOperation_t { CUBLAS_OP_N, CUBLAS_OP_T };
enum cudaDataType_t { CUDA_R_32F, CUDA_R_16BF };
enum cublasComputeType_t { CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32 };
enum cublasGemmAlgo_t { CUBLAS_GEMM_DEFAULT };
enum cublasMath_t { CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION };

inline const char* cublasGetStatusString(cublasStatus_t) { return "emulated"; }
inline cublasStatus_t cublasCreate(cublasHandle_t* handle) {
  *handle = nullptr;
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t) { return CUBLAS_STATUS_SUCCESS; }
inline cublasStatus_t cublasDestroy(cublasHandle_t) { return CUBLAS_STATUS_SUCCESS; }
inline cublasStatus_t cublasSetStream(cublasHandle_t, cudaStream_t) { return CUBLAS_STATUS_SUCCESS; }

/// `count` numbers as the product has them. Of TF32 the worst that a GPU may do: the mantissa cut to 10 bits.
inline std::vector<float> emulated_operand(const void* from, std::size_t count, cudaDataType_t type,
                                           cublasComputeType_t compute = CUBLAS_COMPUTE_32F) {
  std::vector<float> operand(count);
  for (std::size_t i = 0; i < count; ++i) {
    operand[i] = type == CUDA_R_16BF ? static_cast<float>(static_cast<const __nv_bfloat16*>(from)[i])
                                     : static_cast<const float*>(from)[i];
    if (compute == CUBLAS_COMPUTE_32F) continue;
    operand[i] = std::bit_cast<float>(std::bit_cast<std::uint32_t>(operand[i]) & 0xffffe000u);
  }
  return operand;
}

inline cublasStatus_t cublasGemmEx(cublasHandle_t, cublasOperation_t op_a, cublasOperation_t op_b, int m,
                                   int n, int k, const void* alpha, const void* a, cudaDataType_t a_type,
                                   int lda, const void* b, cudaDataType_t b_type, int ldb, const void* beta,
                                   void* c, cudaDataType_t c_type, int ldc, cublasComputeType_t compute,
                                   cublasGemmAlgo_t) {
  // What cuBLAS requires of its arguments.
  if (m < 0 || n < 0 || k < 0 || lda < (op_a == CUBLAS_OP_N ? m : k) || ldb < (op_b == CUBLAS_OP_N ? k : n) ||
      ldc < m) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const auto number = [](const void* at) { return *static_cast<const float*>(at); };
  const auto op = [](cublasOperation_t o) { return o == CUBLAS_OP_N ? CblasNoTrans : CblasTrans; };
  // Columns as stored; the last one ends where the matrix does.
  const auto size = [](int stride, int rows, int columns) {
    return static_cast<std::size_t>(stride) * static_cast<std::size_t>(columns - 1) +
           static_cast<std::size_t>(rows);
  };
  const bool a_as_is = op_a == CUBLAS_OP_N;
  const bool b_as_is = op_b == CUBLAS_OP_N;
  if (a_type != b_type || (c_type == CUDA_R_16BF && a_type != c_type)) return CUBLAS_STATUS_INVALID_VALUE;
  const auto left = emulated_operand(a, size(lda, a_as_is ? m : k, a_as_is ? k : m), a_type, compute);
  const auto right = emulated_operand(b, size(ldb, b_as_is ? k : n, b_as_is ? n : k), b_type, compute);
  auto result = emulated_operand(c, size(ldc, m, n), c_type);
  cblas_sgemm(CblasColMajor, op(op_a), op(op_b), m, n, k, number(alpha), left.data(), lda, right.data(), ldb,
              number(beta), result.data(), ldc);
  for (std::size_t i = 0; i < result.size(); ++i) {
    if (c_type == CUDA_R_16BF) {
      static_cast<__nv_bfloat16*>(c)[i] = __nv_bfloat16(result[i]);
    } else {
      static_cast<float*>(c)[i] = result[i];
    }
  }
  return CUBLAS_STATUS_SUCCESS;
}

// NOLINTEND(readability-identifier-naming)
