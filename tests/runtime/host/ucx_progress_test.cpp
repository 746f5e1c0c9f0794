// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <gtest/gtest.h>

#include "runtime/host/ucx.hpp"
#include "runtime/started_mpi.hpp"

namespace starpipe::runtime {
namespace {

// Runs with MPIR_CVAR_NOLOCAL=1: MPICH then sends by UCX on one host, too.
TEST(FoundByUcx, AMessageThatThisThreadsPollsHaveFound) {
  if (dlsym(RTLD_DEFAULT, "ucp_init_version") == nullptr) GTEST_SKIP() << "MPI does not use UCX";
  const Mpi& mpi = *testing::mpi;
  if (mpi.rank() == 1) {
    MPI_Recv(nullptr, 0, MPI_INT, 0, 0, mpi.comm(), MPI_STATUS_IGNORE);
    MPI_Send(nullptr, 0, MPI_INT, 0, 0, mpi.comm());
  } else {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Irecv(nullptr, 0, MPI_INT, 1, 0, mpi.comm(), &request);
    int done = 0;
    // Until a poll finds nothing: messages of the start may still come.
    do MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    while (found_by_ucx());
    EXPECT_EQ(done, 0);
    MPI_Send(nullptr, 0, MPI_INT, 1, 0, mpi.comm());
    while (done == 0) MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    EXPECT_TRUE(found_by_ucx());
    EXPECT_FALSE(found_by_ucx());
  }
  mpi.barrier();
}

}  // namespace
}  // namespace starpipe::runtime
