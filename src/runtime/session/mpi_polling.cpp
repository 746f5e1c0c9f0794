// SPDX-License-Identifier: Apache-2.0
#include "runtime/session/mpi_polling.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <string_view>
#include <thread>

#include <mpi.h>
#include <pthread.h>

#include "runtime/ranks/clock.hpp"

namespace starpipe::runtime {
namespace {

std::atomic<Polling> polling = Polling::eager;

bool is_polling_thread() {
  thread_local const bool is_starpu_mpi_thread = [] {
    std::array<char, 16> name{};
    return pthread_getname_np(pthread_self(), name.data(), name.size()) == 0 &&
           std::string_view(name.data()) == "MPI";
  }();
  return is_starpu_mpi_thread;
}

// Polls that found nothing since this thread last started or finished a transfer. A large transfer takes many
// polls, and sleeping between them would multiply its time: the thread sleeps only after more vain polls than
// a transfer takes, and then once a round over the open requests.
thread_local int vain_polls = 0;

void note_activity() { vain_polls = 0; }

void rest(bool yields) {
  const int polls_of_a_transfer = yields ? 100 : 300;
  const int polls_of_a_round = yields ? 16 : 64;
  if (++vain_polls < polls_of_a_transfer) {
    if (yields) std::this_thread::yield();
    return;
  }
  vain_polls -= polls_of_a_round;
  thread_local const bool on_time = (wake_on_time(), true);
  static_cast<void>(on_time);
  std::this_thread::sleep_for(std::chrono::microseconds(20));
}

}  // namespace

void poll_mpi(Polling chosen) { polling = chosen; }

}  // namespace starpipe::runtime

// StarPU-MPI has no setting for how it polls; MPI's profiling interface lets us see each poll.
extern "C" int MPI_Test(MPI_Request* request, int* flag, MPI_Status* status) {
  using namespace starpipe::runtime;
  const int result = PMPI_Test(request, flag, status);
  const Polling chosen = polling.load(std::memory_order_relaxed);
  if (result == MPI_SUCCESS && chosen != Polling::eager && is_polling_thread()) {
    if (*flag != 0) {
      note_activity();
    } else {
      rest(chosen == Polling::yielding);
    }
  }
  return result;
}

extern "C" int MPI_Isend(const void* buffer, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
                         MPI_Request* request) {
  starpipe::runtime::note_activity();
  return PMPI_Isend(buffer, count, type, to, tag, comm, request);
}

extern "C" int MPI_Irecv(void* buffer, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm,
                         MPI_Request* request) {
  starpipe::runtime::note_activity();
  return PMPI_Irecv(buffer, count, type, from, tag, comm, request);
}
