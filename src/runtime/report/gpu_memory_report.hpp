// SPDX-License-Identifier: Apache-2.0
// The memory of GPUs during a run, predicted beside measured.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/host/rank_location.hpp"
#include "runtime/session/gpu_memory.hpp"
#include "runtime/engine/memory_need.hpp"

namespace starpipe::runtime {

/// The memory of one GPU of one rank.
struct GpuUse {
  GpuMemory measured;
  std::vector<int> workers;     ///< logical workers on this GPU
  std::uint64_t predicted = 0;  ///< bytes that these workers need together, by memory_need()
};

/// The GPU of each logical worker, as an index in `measured`. Workers on cores get the numbers after the last
/// GPU, one each.
std::vector<int> gpu_of_workers(std::span<const GpuMemory> measured, std::span<const RankLocation> locations);

/// Predicted and measured memory of each GPU. `gpu_of_worker`: from gpu_of_workers(). `needs`: the memory
/// that each of these numbers needs.
std::vector<GpuUse> gpu_use(std::span<const GpuMemory> measured, std::span<const int> gpu_of_worker,
                            std::span<const WorkerMemory> needs);

nlohmann::ordered_json to_json(std::span<const GpuUse> gpus);
/// A table with notes; empty without GPUs.
std::string to_text(std::span<const GpuUse> gpus);

}  // namespace starpipe::runtime
