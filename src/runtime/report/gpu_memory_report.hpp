// SPDX-License-Identifier: Apache-2.0
// The memory of a run's GPUs, predicted beside measured.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/session/gpu_memory.hpp"
#include "runtime/session/rank_location.hpp"
#include "starpipe/runtime/step/memory_need.hpp"

namespace starpipe::runtime {

/// One GPU of a rank.
struct GpuUse {
  GpuMemory measured;
  std::vector<int> workers;     ///< logical, that run on it
  std::uint64_t predicted = 0;  ///< bytes that they need, together (memory_need)
};

/// Who is on which GPU. By logical worker: its index in `measured`; workers on cores follow, one number each.
std::vector<int> gpu_of_workers(std::span<const GpuMemory> measured, std::span<const RankLocation> locations);

/// `needs`: by the numbers of `gpu_of_workers`.
std::vector<GpuUse> gpu_use(std::span<const GpuMemory> measured, std::span<const int> gpu_of_worker,
                            std::span<const WorkerMemory> needs);

nlohmann::ordered_json to_json(std::span<const GpuUse> gpus);
/// A table and notes; empty without GPUs.
std::string to_text(std::span<const GpuUse> gpus);

}  // namespace starpipe::runtime
