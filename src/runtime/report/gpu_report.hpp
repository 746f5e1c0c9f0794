// SPDX-License-Identifier: Apache-2.0
// The paths of data between the GPUs of a run.
#pragma once

#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "runtime/host/mpi.hpp"

namespace starpipe::runtime {

/// How data moves between GPUs.
struct GpuCopies {
  int pairs = 0;         ///< ordered pairs of GPUs of the same rank, summed over ranks
  int peer_to_peer = 0;  ///< pairs that StarPU copies between directly
  /// Path of messages between GPUs of different ranks, in words. Nothing with one rank.
  std::optional<std::string> between_ranks;
};

/// Path of messages between GPUs of different ranks, in words. `uses`: whether StarPU-MPI gives GPU memory to
/// MPI; nothing if unknown. `mpi_can`: whether MPI accepts GPU memory. `disabled`: whether
/// STARPU_MPI_GPUDIRECT=0 is set.
std::string path_between_ranks(std::optional<bool> uses, bool mpi_can, bool disabled);

/// Counts the pairs and finds the path. Collective, with StarPU running; complete on rank 0.
GpuCopies find_gpu_copies(const Mpi& mpi);

nlohmann::ordered_json to_json(const GpuCopies& copies);
/// A line for copies within ranks and a line for copies between ranks, if there are any.
std::string to_text(const GpuCopies& copies);

}  // namespace starpipe::runtime
