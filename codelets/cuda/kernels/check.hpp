// SPDX-License-Identifier: Apache-2.0
// Checks of the status that CUDA and cuBLASLt return. An error means a lost GPU, a full memory or a bug of
// ours. Passes are noexcept and their callers could not go on, so the process ends after one line on standard
// error, which names the `operation`.
#pragma once

#include <cstdio>
#include <cstdlib>

#include <cublasLt.h>
#include <cuda_runtime.h>

namespace starpipe::model::cuda {

inline void check(cudaError_t status, const char* operation) noexcept {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "starpipe: CUDA: %s: %s\n", operation, cudaGetErrorString(status));
  std::abort();
}

inline void check(cublasStatus_t status, const char* operation) noexcept {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  std::fprintf(stderr, "starpipe: cuBLAS: %s: %s\n", operation, cublasLtGetStatusString(status));
  std::abort();
}

}  // namespace starpipe::model::cuda
