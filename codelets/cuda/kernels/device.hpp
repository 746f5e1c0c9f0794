// SPDX-License-Identifier: Apache-2.0
// Checks of the status that CUDA and cuBLASLt return. An error means a lost GPU, a full memory or a bug of
// ours. Passes are noexcept and their callers could not continue, so the process ends after one line on
// standard error, which names the `operation`.
#pragma once

#include <cstddef>
#include <cstdio>
#include <cstdlib>

#include <cublasLt.h>
#include <cuda_runtime.h>

#include "starpipe/model/memory_view.hpp"

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

/// Where a pass runs: a stream of the current device, and a cuBLASLt handle for that device. Owns neither.
struct Context {
  cudaStream_t stream;
  cublasLtHandle_t cublas;
};

/// Copies the first `bytes` of the input to the beginning of the stash, unless the input lies there already.
/// `name` names the pass in the message of a failure.
inline void keep_input(const Context& on, const char* name, ConstMemory input, Memory stash,
                       std::size_t bytes) noexcept {
  if (input.data() == stash.data()) return;
  check(cudaMemcpyAsync(stash.data(), input.data(), bytes, cudaMemcpyDeviceToDevice, on.stream), name);
}

}  // namespace starpipe::model::cuda
