// SPDX-License-Identifier: Apache-2.0
// The program's own MPI_Test, MPI_Isend, MPI_Irecv and sched_yield, through which it sees how StarPU-MPI's
// thread polls, and makes it sleep: StarPU-MPI has no setting for this. A program's symbols come before those
// of all libraries, so StarPU-MPI calls these. They are in the program, not in a library: a library must not
// replace functions of programs that link it. Each calls the next function of its name: a profiler's, or
// MPI's own.
#include <dlfcn.h>
#include <mpi.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/session/mpi_polling.hpp"

namespace {

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" int sched_yield() noexcept {
  if (starpipe::runtime::rest_of_mpi_thread()) return 0;
  return static_cast<int>(syscall(SYS_sched_yield));
}

extern "C" int MPI_Test(MPI_Request* request, int* flag, MPI_Status* status) {
  static auto* const test = next<decltype(MPI_Test)>("MPI_Test");
  const int result = test(request, flag, status);
  if (result == MPI_SUCCESS) starpipe::runtime::note_poll(*flag != 0);
  return result;
}

extern "C" int MPI_Isend(const void* buffer, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
                         MPI_Request* request) {
  static auto* const isend = next<decltype(MPI_Isend)>("MPI_Isend");
  starpipe::runtime::note_transfer();
  const int result = isend(buffer, count, type, to, tag, comm, request);
  starpipe::runtime::note_sent(to);
  return result;
}

extern "C" int MPI_Irecv(void* buffer, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm,
                         MPI_Request* request) {
  static auto* const irecv = next<decltype(MPI_Irecv)>("MPI_Irecv");
  starpipe::runtime::note_transfer();
  return irecv(buffer, count, type, from, tag, comm, request);
}
