// SPDX-License-Identifier: Apache-2.0
// The GPUs of this process, as the CUDA runtime reports them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/host/hardware.hpp"

namespace starpipe::runtime {

/// Returns the GPUs that the CUDA runtime finds: name, memory and compute capability, one line per GPU. Empty
/// without a GPU or a driver, and in builds without STARPIPE_WITH_CUDA.
std::vector<std::string> cuda_devices();

/// True if this build can look for GPUs.
bool built_with_cuda();

/// Returns the GPUs that CUDA lets this process use, with their locations, in CUDA's numbering. In builds
/// without STARPIPE_WITH_CUDA, all GPUs of the host that hwloc finds.
std::vector<Device> visible_gpus();

/// Makes this GPU (CUDA's number) the calling thread's current one. The default is GPU 0: each rank would
/// allocate memory there. In builds without STARPIPE_WITH_CUDA it is never called.
void use_gpu(int gpu);

/// Returns the bytes of a GPU (CUDA's number) that all processes and libraries use, as the driver counts
/// them. In builds without STARPIPE_WITH_CUDA it is never called.
std::uint64_t gpu_bytes_in_use(int gpu);

}  // namespace starpipe::runtime
