// SPDX-License-Identifier: Apache-2.0
// The paths of data between the GPUs of a run.
#pragma once

#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "runtime/session/mpi.hpp"

namespace starpipe::runtime {

/// How data moves between GPUs.
struct GpuCopies {
  int pairs = 0;                             ///< ordered pairs of GPUs of one rank, on all ranks
  int peer_to_peer = 0;                      ///< of them, those that StarPU copies between directly
  std::optional<std::string> between_ranks;  ///< nothing with one rank
};

/// The words for messages between GPUs of two ranks. `uses`: whether StarPU-MPI gives GPU memory to MPI
/// (nothing when it does not tell); `mpi_can`: whether MPI says that it takes it; `disabled`: by
/// STARPU_MPI_GPUDIRECT=0.
std::string path_between_ranks(std::optional<bool> uses, bool mpi_can, bool disabled);

/// Collective, with StarPU running. Complete on rank 0.
GpuCopies find_gpu_copies(const Mpi& mpi);

nlohmann::ordered_json to_json(const GpuCopies& copies);
/// One line for the copies within ranks and one for those between ranks, as far as there are any.
std::string to_text(const GpuCopies& copies);

}  // namespace starpipe::runtime
