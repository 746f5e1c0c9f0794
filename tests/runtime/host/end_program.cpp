// SPDX-License-Identifier: Apache-2.0
// A program whose ranks exchange a message each with each other, and end.
//   end_program STATUS [stuck | lost]
// STATUS: of all ranks. `stuck`: rank 0 never returns from MPI_Finalize, so the other ranks wait there for
// it. `lost`: rank 1 does not come to the end of the run, where rank 0 waits for it.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <mpi.h>
#include <unistd.h>

#include "runtime/host/agreement.hpp"
#include "runtime/host/mpi.hpp"

namespace {

bool is_stuck = false;

void exchange_messages() {
  int rank = 0;
  int ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  is_stuck = is_stuck && rank == 0;
  for (int other = 0; other < ranks; ++other) {
    int received = -1;
    if (other != rank) {
      MPI_Sendrecv(&rank, 1, MPI_INT, other, 0, &received, 1, MPI_INT, other, 0, MPI_COMM_WORLD,
                   MPI_STATUS_IGNORE);
    }
  }
}

}  // namespace

extern "C" int MPI_Finalize() {
  while (is_stuck) pause();
  return PMPI_Finalize();
}

int main(int argc, char** argv) {
  using namespace std::chrono_literals;
  const std::string fault = argc > 2 ? argv[2] : "";
  is_stuck = fault == "stuck";
  {
    const starpipe::runtime::StartedMpi library(
        [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); },
        {.finalize = is_stuck ? 500ms : 30s});
    exchange_messages();
    if (fault == "lost") {
      const starpipe::runtime::Mpi mpi;
      while (mpi.rank() == 1) pause();
      const starpipe::runtime::EndWatch watch(mpi, 200ms);
      mpi.barrier();
    }
  }
  std::printf("ended\n");
  return std::atoi(argv[1]);
}
