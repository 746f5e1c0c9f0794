// SPDX-License-Identifier: Apache-2.0
#include "runtime/session/worker_backend.hpp"

#include <cstdlib>

#ifdef STARPIPE_WITH_CUDA
#include <starpu_cublas_v2.h>

#include "codelets/cuda/backend/stream_backend.hpp"
#endif

namespace starpipe::runtime {

#ifdef STARPIPE_WITH_CUDA

CublasHandles::CublasHandles() { starpu_cublas_init(); }
CublasHandles::~CublasHandles() { starpu_cublas_shutdown(); }

void run_kernel_on_stream(const KernelContext& context, const Task& task, std::span<const model::Memory> data,
                          model::Memory scratch) noexcept {
  // cuBLAS documents that its handles are cuBLASLt's too, by this cast.
  const model::cuda::StreamBackend backend(
      {starpu_cuda_get_local_stream(), reinterpret_cast<cublasLtHandle_t>(starpu_cublas_get_local_handle())});
  run_kernel(context, task, data, scratch, backend);
}

#else

CublasHandles::CublasHandles() = default;
CublasHandles::~CublasHandles() = default;

void run_kernel_on_stream(const KernelContext& /*context*/, const Task& /*task*/,
                          std::span<const model::Memory> /*data*/, model::Memory /*scratch*/) noexcept {
  std::abort();
}

#endif

}  // namespace starpipe::runtime
