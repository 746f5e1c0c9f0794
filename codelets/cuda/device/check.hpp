// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <cstdlib>

#include <cublasLt.h>
#include <cuda_runtime.h>

namespace starpipe::model::cuda {

// What fails here is a lost GPU, a full memory or a bug of ours; no pass can go on, nor tell its caller.

inline void check(cudaError_t status, const char* what) noexcept {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "starpipe: CUDA: %s: %s\n", what, cudaGetErrorString(status));
  std::abort();
}

inline void check(cublasStatus_t status, const char* what) noexcept {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  std::fprintf(stderr, "starpipe: cuBLAS: %s: %s\n", what, cublasLtGetStatusString(status));
  std::abort();
}

}  // namespace starpipe::model::cuda
