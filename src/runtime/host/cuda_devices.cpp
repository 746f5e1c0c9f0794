// SPDX-License-Identifier: Apache-2.0
#include "runtime/host/cuda_devices.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>

#include <fmt/format.h>

#include "runtime/host/locality.hpp"
#include "starpipe/base/error.hpp"

#ifdef STARPIPE_WITH_CUDA
#include <cuda_runtime_api.h>
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

std::vector<Device> visible_gpus() {
  const std::vector<Device> all = find_gpus(Topology::host_with_devices());
  std::vector<Device> visible;
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) return visible;
  for (int number = 0; number < count; ++number) {
    std::array<char, 32> address{};
    if (cudaDeviceGetPCIBusId(address.data(), static_cast<int>(address.size()), number) != cudaSuccess)
      continue;
    std::string pci = address.data();  // hexadecimal in capitals, hwloc's is not
    std::ranges::transform(pci, pci.begin(), [](unsigned char c) { return std::tolower(c); });
    const auto known = std::ranges::find(all, pci, &Device::pci);
    Device gpu;
    if (known != all.end()) gpu = *known;  // a container may hide its PCI devices
    gpu.kind = DeviceKind::gpu;
    gpu.pci = pci;
    gpu.number = number;
    gpu.name = fmt::format("cuda{}", number);
    visible.push_back(std::move(gpu));
  }
  return visible;
}

void use_gpu(int gpu) {
  const cudaError_t status = cudaSetDevice(gpu);
  require(status, "CUDA", "choosing", fmt::format("GPU {}", gpu), cudaGetErrorString(status));
}

std::uint64_t gpu_bytes_in_use(int gpu) {
  // The thread may be a StarPU worker, which relies on its own device.
  int before = 0;
  if (cudaGetDevice(&before) != cudaSuccess || cudaSetDevice(gpu) != cudaSuccess) return 0;
  std::size_t free = 0;
  std::size_t total = 0;
  const bool known = cudaMemGetInfo(&free, &total) == cudaSuccess;
  cudaSetDevice(before);
  return known ? total - free : 0;
}

#else

void use_gpu(int /*gpu*/) { std::abort(); }
std::uint64_t gpu_bytes_in_use(int /*gpu*/) { std::abort(); }
bool built_with_cuda() { return false; }
std::vector<std::string> cuda_devices() { return {}; }
std::vector<Device> visible_gpus() { return find_gpus(Topology::host_with_devices()); }

#endif

}  // namespace starpipe::runtime
