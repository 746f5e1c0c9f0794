// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/worker_backend.hpp"

#include <algorithm>
#include <cstdlib>
#include <stdexcept>

#ifdef STARPIPE_WITH_CUDA
#include <starpu_cublas_v2.h>

#include "codelets/cuda/backend/stream_backend.hpp"
#endif

namespace starpipe::runtime {

#ifdef STARPIPE_WITH_CUDA

void run_kernel_on_stream(const KernelContext& context, const Task& task, std::span<const model::Memory> data,
                          model::Memory scratch, NonFinite* found) noexcept {
  // cuBLAS documents that its handles are cuBLASLt's too, by this cast.
  const model::cuda::StreamBackend backend(
      {starpu_cuda_get_local_stream(), reinterpret_cast<cublasLtHandle_t>(starpu_cublas_get_local_handle())});
  run_kernel(context, task, data, scratch, found, backend);
}

#else

void run_kernel_on_stream(const KernelContext& /*context*/, const Task& /*task*/,
                          std::span<const model::Memory> /*data*/, model::Memory /*scratch*/,
                          NonFinite* /*found*/) noexcept {
  std::abort();
}

#endif

SharedFlags::SharedFlags(std::size_t count, [[maybe_unused]] bool on_gpus)
    : count_(count), memory_(nullptr, [](NonFinite* /*none*/) {}) {
#ifdef STARPIPE_WITH_CUDA
  if (on_gpus) {
    // With one address space for host and GPUs, a GPU writes to this memory by the host's address.
    void* memory = nullptr;
    if (cudaHostAlloc(&memory, std::max<std::size_t>(1, count) * sizeof(NonFinite),
                      cudaHostAllocPortable | cudaHostAllocMapped) != cudaSuccess)
      throw std::runtime_error("CUDA gives no memory that host and GPU share");
    memory_ = {static_cast<NonFinite*>(memory), [](NonFinite* used) { cudaFreeHost(used); }};
    std::uninitialized_default_construct_n(memory_.get(), count);
    return;
  }
#endif
  memory_ = {new NonFinite[count], [](NonFinite* used) { delete[] used; }};
}

}  // namespace starpipe::runtime
