// SPDX-License-Identifier: Apache-2.0
#include "runtime/session/gpu_memory.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include <starpu.h>

#include "runtime/host/cuda_devices.hpp"

namespace starpipe::runtime {

GpuMemory& entry_of(std::span<GpuMemory> memory, int gpu) {
  const auto found = std::ranges::find(memory, gpu, &GpuMemory::gpu);
  if (found == memory.end()) {
    throw std::logic_error("GPU " + std::to_string(gpu) + " of StarPU is not among this rank's GPUs");
  }
  return *found;
}

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
    GpuMemory& entry = entry_of(memory, gpu);
    entry.starpu_peak = meter.starpu_peak();
    entry.driver_peak = meter.driver_peak();
  }
}

}  // namespace starpipe::runtime
