// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace starpipe::runtime {

/// Whether StarPU-MPI's thread sleeps a moment between polls that find nothing, from now on. For ranks that
/// share their cores with workers: the thread polls as long as it expects a message, and would take half of
/// a worker's core, and whole time slices from another rank's thread. Costs a message some 50 microseconds.
void poll_mpi_gently(bool gently);

}  // namespace starpipe::runtime
