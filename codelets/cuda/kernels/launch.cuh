// SPDX-License-Identifier: Apache-2.0
// All kernels start here. The tests have another launch.cuh, which runs the same kernels on a CPU.
#pragma once

#include <cstddef>

#include "codelets/cuda/kernels/device.hpp"

namespace starpipe::model::cuda {

/// Returns the block's dynamic shared memory, of the size that the launch asked for. It begins at a multiple
/// of 128 bytes.
__device__ inline float* shared_floats() {
  extern __shared__ __align__(128) float starpipe_shared_floats[];
  return starpipe_shared_floats;
}

/// A launch's shape.
struct Grid {
  dim3 blocks;
  dim3 threads;            ///< of a block
  std::size_t shared = 0;  ///< floats of dynamic shared memory of a block
};

/// Enqueues the kernel. A failure ends the process with a message that has `name` in it.
template <class... Parameters, class... Arguments>
void launch(const Context& on, const char* name, const Grid& grid, void (*kernel)(Parameters...),
            Arguments... arguments) noexcept {
  const std::size_t bytes = grid.shared * sizeof(float);
  constexpr std::size_t default_bytes = 48 * 1024;  // a kernel that needs more has to ask for it
  if (bytes > default_bytes) {
    check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                               cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
          name);
  }
  // cudaLaunchKernelEx returns this launch's own status. cudaGetLastError() would also report an older error
  // of the thread, such as an allocation's, which StarPU has already handled.
  cudaLaunchConfig_t config{};
  config.gridDim = grid.blocks;
  config.blockDim = grid.threads;
  config.dynamicSmemBytes = bytes;
  config.stream = on.stream;
  check(cudaLaunchKernelEx(&config, kernel, arguments...), name);
}

}  // namespace starpipe::model::cuda
