// SPDX-License-Identifier: Apache-2.0
// Progress of UCX, MPICH's transport, while MPICH itself makes none. In MPI_Finalize, MPICH up to 4.1
// disconnects from all ranks and then waits for the launcher's barrier without polling UCX. A rank that is
// still disconnecting needs answers from the ranks that wait there already, so over TCP most runs on several
// ranks would never end. docs/internals/progress.md has more.
#pragma once

namespace starpipe::runtime {

/// Call it just before MPI_Finalize, while no other thread calls MPI.
void expect_end_of_ucx();

/// Polls UCX if MPI_Finalize has begun to disconnect and has made no such call since the last poll. Call it
/// again and again, by one thread, while another is in MPI_Finalize. It never waits. It does nothing under an
/// MPI without UCX, or where UCX's functions are not replaced by ours: in programs that load MPI by dlopen.
void poll_ucx();

}  // namespace starpipe::runtime
