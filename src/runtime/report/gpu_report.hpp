// SPDX-License-Identifier: Apache-2.0
// What a run tells of its GPUs: their memory, predicted beside measured, and the paths between them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/session/gpu_memory.hpp"
#include "runtime/session/mpi.hpp"
#include "runtime/session/rank_location.hpp"
#include "starpipe/runtime/step/memory_need.hpp"

namespace starpipe::runtime {

/// One GPU of a rank.
struct GpuUse {
  GpuMemory measured;
  std::vector<int> workers;     ///< logical, that run on it
  std::uint64_t predicted = 0;  ///< bytes that they need, together (memory_need)
};

/// How data moves between GPUs.
struct GpuCopies {
  int pairs = 0;                             ///< ordered pairs of GPUs of one rank, on all ranks
  int peer_to_peer = 0;                      ///< of them, those that StarPU copies between directly
  std::optional<std::string> between_ranks;  ///< nothing with one rank
};

/// What the GPUs of a run say; no GPUs: its workers are cores.
struct GpuReport {
  std::vector<GpuUse> gpus;
  GpuCopies copies;
};

/// Who is on which GPU. By logical worker: its index in `measured`; workers on cores follow, one number each.
std::vector<int> gpu_of_workers(std::span<const GpuMemory> measured, std::span<const RankLocation> locations);

/// `needs`: by the numbers of `gpu_of_workers`.
std::vector<GpuUse> gpu_use(std::span<const GpuMemory> measured, std::span<const int> gpu_of_worker,
                            std::span<const WorkerMemory> needs);

/// The words for messages between GPUs of two ranks. `uses`: whether StarPU-MPI gives GPU memory to MPI
/// (nothing when it does not tell); `mpi_can`: whether MPI says that it takes it; `disabled`: by
/// STARPU_MPI_GPUDIRECT=0.
std::string path_between_ranks(std::optional<bool> uses, bool mpi_can, bool disabled);

/// Collective, with StarPU running. Complete on rank 0.
GpuCopies find_gpu_copies(const Mpi& mpi);

nlohmann::ordered_json to_json(const GpuReport& report);
/// A table and notes; empty without GPUs.
std::string to_text(const GpuReport& report);

}  // namespace starpipe::runtime
