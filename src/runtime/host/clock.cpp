// SPDX-License-Identifier: Apache-2.0
#include "runtime/host/clock.hpp"

#include <chrono>
#include <filesystem>
#include <limits>
#include <span>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include <mpi.h>
#include <sys/prctl.h>

#include "runtime/host/agreement.hpp"
#include "runtime/host/hardware.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/base/random.hpp"

namespace starpipe::runtime {
namespace {

constexpr double late = 200e-6;  // seconds; most sleeps on a virtual machine end no later
constexpr int round_trips = 20;
constexpr int round_trip_tag = 1;  // of the messages of a round trip

}  // namespace

double clock_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void wake_on_time() {
  thread_local const int status = prctl(PR_SET_TIMERSLACK, 1UL);
  static_cast<void>(status);
}

void wait_until(double time) {
  const std::chrono::duration<double> since_epoch(time - late / patience.load());
  std::this_thread::sleep_until(std::chrono::steady_clock::time_point(
      std::chrono::duration_cast<std::chrono::steady_clock::duration>(since_epoch)));
  // Yield: other threads of the core have work, or wait for a time that comes before this one.
  while (clock_seconds() < time) std::this_thread::yield();
}

std::string clock_name() {
  std::error_code no_namespaces;  // an older Linux
  return find_hardware().host + std::filesystem::read_symlink("/proc/self/ns/time", no_namespaces).string();
}

double measure_clock_offset(const Mpi& mpi, const std::string& clock) {
  if (mpi.all_equal(hash_of(std::string_view(clock), hash_start))) return 0;
  const int differs = mpi.share(clock) == clock ? 0 : 1;
  const std::vector<int> others = gather_on_root<int>(mpi, std::span(&differs, 1));  // by rank, on rank 0
  const MPI_Comm comm = mpi.comm();
  const int rank = mpi.rank();
  double offset = 0;
  double shortest = std::numeric_limits<double>::infinity();
  for (int other = 1; other < mpi.ranks(); ++other) {
    const bool takes_part = rank == 0 ? others[index(other)] != 0 : rank == other && differs != 0;
    if (!takes_part) continue;
    for (int i = 0; i < round_trips; ++i) {
      double theirs = 0;
      if (rank == 0) {
        MPI_Recv(nullptr, 0, MPI_DOUBLE, other, round_trip_tag, comm, MPI_STATUS_IGNORE);
        theirs = clock_seconds();
        MPI_Send(&theirs, 1, MPI_DOUBLE, other, round_trip_tag, comm);
      } else if (rank == other) {
        const double sent = clock_seconds();
        MPI_Send(nullptr, 0, MPI_DOUBLE, 0, round_trip_tag, comm);
        MPI_Recv(&theirs, 1, MPI_DOUBLE, 0, round_trip_tag, comm, MPI_STATUS_IGNORE);
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
