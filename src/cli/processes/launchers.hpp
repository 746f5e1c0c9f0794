// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

namespace starpipe::cli {

/// Names on PATH of the launcher of the MPI that starpipe is built with: Debian's name, hydra's own (MPICH),
/// and the plain name, which may belong to another MPI. The first one that is found counts.
inline constexpr std::array mpi_launchers = {
#ifdef STARPIPE_WITH_OPENMPI
    "mpiexec.openmpi",
#else
    "mpiexec.mpich", "mpiexec.hydra",
#endif
    "mpiexec"};

}  // namespace starpipe::cli
