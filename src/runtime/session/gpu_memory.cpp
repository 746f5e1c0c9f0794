// SPDX-License-Identifier: Apache-2.0
#include "runtime/session/gpu_memory.hpp"

#include <starpu.h>

#include "runtime/hardware/cuda_devices.hpp"

namespace starpipe::runtime {

GpuMemoryMeters::GpuMemoryMeters(std::vector<int> nodes) : nodes_(std::move(nodes)) {
  for (const int node : nodes_) {
    if (node < 0 || starpu_node_get_kind(static_cast<unsigned>(node)) != STARPU_CUDA_RAM) continue;
    const int gpu = starpu_memory_node_get_devid(static_cast<unsigned>(node));
    meters_.try_emplace(
        node, [node] { return starpu_memory_get_used(static_cast<unsigned>(node)); },
        [gpu] { return gpu_bytes_in_use(gpu); });
  }
}

void GpuMemoryMeters::write_to(std::vector<GpuMemory>& memory) const {
  for (const auto& [node, meter] : meters_) {
    const int gpu = starpu_memory_node_get_devid(static_cast<unsigned>(node));
    const auto at = std::ranges::find(memory, gpu, &GpuMemory::gpu);
    at->starpu_peak = meter.starpu_peak();
    at->driver_peak = meter.driver_peak();
  }
}

}  // namespace starpipe::runtime
