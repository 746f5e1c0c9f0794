// SPDX-License-Identifier: Apache-2.0
// The GPUs of a run in its report: the paths of data between them, and their memory.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/engine/memory_need.hpp"
#include "runtime/host/mpi.hpp"
#include "runtime/host/worker_map.hpp"
#include "runtime/session/gpu_memory.hpp"

namespace starpipe::runtime {

/// How data moves between GPUs.
struct GpuCopies {
  int pairs = 0;         ///< ordered pairs of GPUs of the same rank, summed over ranks
  int peer_to_peer = 0;  ///< pairs that StarPU copies between directly
  /// Path of messages between GPUs of different ranks, in words; nullopt with one rank.
  std::optional<std::string> between_ranks;
};

/// Returns the path of messages between GPUs of different ranks, in words. `uses`: StarPU-MPI gives GPU
/// memory to MPI; nullopt if unknown. `mpi_can`: MPI accepts GPU memory. `disabled`: STARPU_MPI_GPUDIRECT=0
/// is set.
std::string path_between_ranks(std::optional<bool> uses, bool mpi_can, bool disabled);

/// Counts the pairs and finds the path. Collective, with StarPU running; complete on rank 0.
GpuCopies find_gpu_copies(const Mpi& mpi);

nlohmann::ordered_json to_json(const GpuCopies& copies);
/// A line for copies within ranks and a line for copies between ranks, if there are any.
std::string to_text(const GpuCopies& copies);

// The memory of GPUs during a run, predicted and measured.

/// The memory of one GPU of one rank.
struct GpuUse {
  GpuMemory measured;
  std::vector<int> workers;     ///< logical workers on this GPU
  std::uint64_t predicted = 0;  ///< bytes that these workers need together, by memory_need()
};

/// Returns the GPU of each logical worker, as an index in `measured`. Workers on cores get the numbers after
/// the last GPU, one each.
std::vector<int> gpu_of_workers(std::span<const GpuMemory> measured, std::span<const RankLocation> locations);

/// Returns the predicted and measured memory of each GPU. `gpu_of_worker`: from gpu_of_workers(). `needs`:
/// the memory that each of these numbers needs.
std::vector<GpuUse> gpu_use(std::span<const GpuMemory> measured, std::span<const int> gpu_of_worker,
                            std::span<const WorkerMemory> needs);

nlohmann::ordered_json to_json(std::span<const GpuUse> gpus);
/// A table with notes; empty without GPUs.
std::string to_text(std::span<const GpuUse> gpus);

}  // namespace starpipe::runtime
