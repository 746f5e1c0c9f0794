// SPDX-License-Identifier: Apache-2.0
// The main memory of a run: predicted for each rank, and compared with what each host has.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/engine/memory_need.hpp"
#include "runtime/host/mpi.hpp"
#include "runtime/host/worker_map.hpp"
#include "runtime/setup/experiment.hpp"
#include "starpipe/runtime/config/config.hpp"

namespace starpipe::runtime {

/// Holds the bytes that a rank needs in main memory, at its peak.
struct MainMemory {
  WorkerMemory data;             ///< of all its workers together; of workers on GPUs the copies that stay
  std::uint64_t kept = 0;        ///< kept on cores beyond that for later data (DeviceNeed::kept)
  std::uint64_t checkpoint = 0;  ///< the copy of parameters and optimizer state that a checkpoint is made of
  std::uint64_t reference = 0;   ///< what verify computes sequentially, on rank 0
  std::uint64_t message = 0;     ///< in an emulated run the largest datum that it receives; it has no others
  std::uint64_t process = 0;     ///< the program, its libraries, StarPU, MPI and the training data

  [[nodiscard]] std::uint64_t total() const {
    return data.total() + kept + checkpoint + reference + message + process;
  }
};

/// Covers the stacks and tables of StarPU, MPI and BLAS in a process, in bytes, as measured. The memory that
/// the process has before StarPU starts is not part of it.
inline constexpr std::uint64_t runtime_bytes = std::uint64_t{24} << 20U;
/// The same for a process whose jobs are emulated.
inline constexpr std::uint64_t emulated_runtime_bytes = std::uint64_t{12} << 20U;

/// Returns the need of each rank, [rank], without `process`.
std::vector<MainMemory> main_memory_need(const Config& config, const Experiment& experiment,
                                         const WorkerMap& map, int ranks);

/// Collective. Returns the need of each rank, [rank], on rank 0; empty on the others. `locations`: on rank 0
/// only. Throws InputError on every rank if the ranks of a host need more than its memory, or the ranks of a
/// control group more than its limit: one line with the host, the need and the limit. Of an emulated run the
/// messages count, and of its processes what they do not share; the result is empty.
std::vector<MainMemory> require_main_memory(const Mpi& mpi, const Config& config,
                                            const Experiment& experiment, const WorkerMap& map,
                                            const std::vector<RankLocation>& locations);

/// Collective. Throws InputError as `require_main_memory` does if rank 0 has no memory for the sequential
/// computation of `verify` in addition to the `needs` that `require_main_memory` has returned.
void require_reference_memory(const Mpi& mpi, const model::Network& network, std::vector<MainMemory> needs,
                              const std::vector<RankLocation>& locations);

}  // namespace starpipe::runtime
