// SPDX-License-Identifier: Apache-2.0
// As much of cuBLAS as we use, by CBLAS; see cuda_runtime.h.
#pragma once

#include <cblas.h>

#include "cuda_runtime.h"

// NOLINTBEGIN(readability-identifier-naming)

using cublasHandle_t = void*;
enum cublasStatus_t { CUBLAS_STATUS_SUCCESS, CUBLAS_STATUS_INVALID_VALUE };
enum cublasOperation_t { CUBLAS_OP_N, CUBLAS_OP_T };
enum cudaDataType_t { CUDA_R_32F };
enum cublasComputeType_t { CUBLAS_COMPUTE_32F };
enum cublasGemmAlgo_t { CUBLAS_GEMM_DEFAULT };

inline const char* cublasGetStatusString(cublasStatus_t) { return "emulated"; }
inline cublasStatus_t cublasCreate(cublasHandle_t* handle) {
  *handle = nullptr;
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasDestroy(cublasHandle_t) { return CUBLAS_STATUS_SUCCESS; }
inline cublasStatus_t cublasSetStream(cublasHandle_t, cudaStream_t) { return CUBLAS_STATUS_SUCCESS; }

inline cublasStatus_t cublasGemmEx(cublasHandle_t, cublasOperation_t op_a, cublasOperation_t op_b, int m,
                                   int n, int k, const void* alpha, const void* a, cudaDataType_t, int lda,
                                   const void* b, cudaDataType_t, int ldb, const void* beta, void* c,
                                   cudaDataType_t, int ldc, cublasComputeType_t, cublasGemmAlgo_t) {
  // What cuBLAS requires of its arguments.
  if (m < 0 || n < 0 || k < 0 || lda < (op_a == CUBLAS_OP_N ? m : k) || ldb < (op_b == CUBLAS_OP_N ? k : n) ||
      ldc < m) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const auto number = [](const void* at) { return *static_cast<const float*>(at); };
  const auto op = [](cublasOperation_t o) { return o == CUBLAS_OP_N ? CblasNoTrans : CblasTrans; };
  cblas_sgemm(CblasColMajor, op(op_a), op(op_b), m, n, k, number(alpha), static_cast<const float*>(a), lda,
              static_cast<const float*>(b), ldb, number(beta), static_cast<float*>(c), ldc);
  return CUBLAS_STATUS_SUCCESS;
}

// NOLINTEND(readability-identifier-naming)
