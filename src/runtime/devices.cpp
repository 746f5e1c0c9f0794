// SPDX-License-Identifier: Apache-2.0
#include "devices.hpp"

#ifdef STARPIPE_WITH_CUDA
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#endif

namespace starpipe::runtime {

#ifdef STARPIPE_WITH_CUDA

bool built_with_cuda() { return true; }

std::vector<std::string> cuda_devices() {
  std::vector<std::string> devices;
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) return devices;  // no driver, or no GPU
  for (int device = 0; device < count; ++device) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, device) != cudaSuccess) continue;
    devices.push_back(fmt::format("{}, {:.1f} GiB, compute capability {}.{}", properties.name,
                                  static_cast<double>(properties.totalGlobalMem) / (1ULL << 30),
                                  properties.major, properties.minor));
  }
  return devices;
}

#else

bool built_with_cuda() { return false; }
std::vector<std::string> cuda_devices() { return {}; }

#endif

}  // namespace starpipe::runtime
