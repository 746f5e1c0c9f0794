// SPDX-License-Identifier: Apache-2.0
// Two ranks: rank 0 sends 4 MiB that rank 1 does not yet receive. Prints what carries the messages, and
// "eager" if the message has left rank 0 all the same, "rendezvous" if not.
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include <mpi.h>

#include "runtime/host/mpi.hpp"

int main() {
  using starpipe::runtime::wait_for;
  const starpipe::runtime::StartedMpi library(
      [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); });
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  std::vector<char> data(std::size_t{4} << 20U);
  const int count = static_cast<int>(data.size());
  int eager = 0;
  MPI_Request request = MPI_REQUEST_NULL;
  if (rank == 0) {
    MPI_Request sent = MPI_REQUEST_NULL;
    MPI_Isend(data.data(), count, MPI_BYTE, 1, 0, MPI_COMM_WORLD, &sent);
    eager = wait_for(sent, nullptr, std::chrono::seconds(2)) ? 1 : 0;
    MPI_Isend(&eager, 1, MPI_INT, 1, 1, MPI_COMM_WORLD, &request);
    wait_for(request);
    wait_for(sent);
    std::printf("%s: %s\n", starpipe::runtime::transports().c_str(), eager == 1 ? "eager" : "rendezvous");
    return 0;
  }
  MPI_Irecv(&eager, 1, MPI_INT, 0, 1, MPI_COMM_WORLD, &request);
  wait_for(request);
  MPI_Irecv(data.data(), count, MPI_BYTE, 0, 0, MPI_COMM_WORLD, &request);
  wait_for(request);
  return 0;
}
