// SPDX-License-Identifier: Apache-2.0
// How kernels start, in one place: the tests have another launch.cuh, which runs the same kernels on a CPU.
#pragma once

#include <cstddef>

#include "codelets/cuda/device/check.hpp"
#include "codelets/cuda/device/context.hpp"

namespace starpipe::model::cuda {

/// The block's shared memory of the size that the launch asked for, at a multiple of 128 bytes. One a kernel.
__device__ inline float* shared_floats() {
  extern __shared__ __align__(128) float starpipe_shared_floats[];
  return starpipe_shared_floats;
}

/// A launch's shape.
struct Grid {
  dim3 blocks;
  dim3 threads;
  std::size_t shared = 0;  ///< floats of shared_floats()
};

/// Enqueues the kernel. `name` is for the message of a failure, which ends the process.
template <class... Parameters, class... Arguments>
void launch(const Context& on, const char* name, const Grid& grid, void (*kernel)(Parameters...),
            Arguments... arguments) noexcept {
  const std::size_t bytes = grid.shared * sizeof(float);
  constexpr std::size_t kWithoutAsking = 48 * 1024;
  if (bytes > kWithoutAsking) {
    check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                               cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
          name);
  }
  // Its own status: the thread's last error may be an allocation's, from which StarPU has recovered.
  cudaLaunchConfig_t config{};
  config.gridDim = grid.blocks;
  config.blockDim = grid.threads;
  config.dynamicSmemBytes = bytes;
  config.stream = on.stream;
  check(cudaLaunchKernelEx(&config, kernel, arguments...), name);
}

}  // namespace starpipe::model::cuda
