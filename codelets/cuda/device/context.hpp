// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

namespace starpipe::model::cuda {

/// What a pass runs on: a stream of the current device, and a handle of cuBLASLt for that device.
struct Context {
  cudaStream_t stream;
  cublasLtHandle_t cublas;
};

}  // namespace starpipe::model::cuda
