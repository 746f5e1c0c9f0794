// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

namespace starpipe::cli {

/// The names of a launcher on PATH for the MPI that starpipe is built with, to be tried in this order:
/// Debian's name, hydra's own (MPICH), and the plain name, which may belong to another MPI.
inline constexpr std::array mpi_launchers = {
#ifdef STARPIPE_WITH_OPENMPI
    "mpiexec.openmpi",
#else
    "mpiexec.mpich", "mpiexec.hydra",
#endif
    "mpiexec"};

}  // namespace starpipe::cli
