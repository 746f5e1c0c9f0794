// SPDX-License-Identifier: Apache-2.0
#include "runtime/ranks/clock.hpp"

#include <chrono>
#include <limits>
#include <thread>

#include <sys/prctl.h>

namespace starpipe::runtime {
namespace {

constexpr double late = 200e-6;  // seconds; most sleeps on a virtual machine end no later
constexpr int round_trips = 20;
constexpr int tag = 1;  // of the messages of a round trip

}  // namespace

double clock_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void wake_on_time() { prctl(PR_SET_TIMERSLACK, 1UL); }

void wait_until(double time) {
  const std::chrono::duration<double> since_epoch(time - late);
  std::this_thread::sleep_until(std::chrono::steady_clock::time_point(
      std::chrono::duration_cast<std::chrono::steady_clock::duration>(since_epoch)));
  // Yield: other threads of the core have work, or wait for a time that comes before this one.
  while (clock_seconds() < time) std::this_thread::yield();
}

double measure_clock_offset(MPI_Comm comm) {
  int rank = 0;
  int ranks = 1;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &ranks);
  double offset = 0;
  double shortest = std::numeric_limits<double>::infinity();
  for (int other = 1; other < ranks; ++other) {
    for (int i = 0; i < round_trips; ++i) {
      double theirs = 0;
      if (rank == 0) {
        MPI_Recv(nullptr, 0, MPI_DOUBLE, other, tag, comm, MPI_STATUS_IGNORE);
        theirs = clock_seconds();
        MPI_Send(&theirs, 1, MPI_DOUBLE, other, tag, comm);
      } else if (rank == other) {
        const double sent = clock_seconds();
        MPI_Send(nullptr, 0, MPI_DOUBLE, 0, tag, comm);
        MPI_Recv(&theirs, 1, MPI_DOUBLE, 0, tag, comm, MPI_STATUS_IGNORE);
        const double received = clock_seconds();
        if (received - sent >= shortest) continue;
        shortest = received - sent;
        offset = theirs - (sent + received) / 2;
      }
    }
  }
  return offset;
}

}  // namespace starpipe::runtime
