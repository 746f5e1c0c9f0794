// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cublas_v2.h>
#include <cuda_runtime.h>

namespace starpipe::model::cuda {

/// What a pass runs on: a stream of the current device, and a cuBLAS handle set to that stream.
struct Context {
  cudaStream_t stream;
  cublasHandle_t cublas;
};

}  // namespace starpipe::model::cuda
