// SPDX-License-Identifier: Apache-2.0
// A session's cuBLAS handles, and the GPU buffers that it keeps for later data.
#pragma once

#include <cstdint>

#include <starpu.h>

namespace starpipe::runtime {

/// StarPU's cuBLAS handles, one for each CUDA worker, during this object's lifetime. It starts after StarPU
/// and ends before StarPU ends. Does nothing in builds without CUDA.
class CublasHandles {
 public:
  CublasHandles();
  // NOLINTNEXTLINE(performance-trivially-destructible): it is not in builds with CUDA
  ~CublasHandles();
  CublasHandles(const CublasHandles&) = delete;
  CublasHandles& operator=(const CublasHandles&) = delete;
};

/// Keeps the buffers that StarPU frees on GPUs, for later data of the same size. StarPU frees a buffer of
/// more than 4 MiB by cudaFree, which waits for all copies and kernels under way; so each eviction of a copy
/// would stop the GPU. When StarPU finds no memory for a datum, kept buffers are freed first. One object at a
/// time in a process, while StarPU runs. Thread-safe.
class GpuBuffers {
 public:
  GpuBuffers();
  /// Frees all kept buffers. StarPU then frees data of `register_words` itself.
  ~GpuBuffers();
  GpuBuffers(const GpuBuffers&) = delete;
  GpuBuffers& operator=(const GpuBuffers&) = delete;

  /// Registers words of 4 bytes, as starpu_vector_data_register does. `buffer`: the words of the buffers that
  /// StarPU allocates for them, at least `words`. The handle may outlive this.
  static starpu_data_handle_t register_words(int home, std::uintptr_t memory, std::uint32_t words,
                                             std::uint32_t buffer);
};

}  // namespace starpipe::runtime
