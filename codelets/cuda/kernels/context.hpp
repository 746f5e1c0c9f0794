// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

namespace starpipe::model::cuda {

/// Where a pass runs: a stream of the current device, and a cuBLASLt handle for that device. Owns neither.
struct Context {
  cudaStream_t stream;
  cublasLtHandle_t cublas;
};

}  // namespace starpipe::model::cuda
