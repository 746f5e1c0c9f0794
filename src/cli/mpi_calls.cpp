// SPDX-License-Identifier: Apache-2.0
// The program's own MPI_Test, MPI_Isend and MPI_Irecv, through which it sees StarPU-MPI's polls: StarPU-MPI
// has no setting for how it polls. A program's symbols come before those of all libraries, so StarPU-MPI
// calls these. They are in the program, not in a library: a library must not replace functions of programs
// that link it. Each calls the next function of its name: a profiler's, or MPI's own.
#include <dlfcn.h>
#include <mpi.h>

#include "runtime/session/mpi_polling.hpp"

namespace {

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

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
  return isend(buffer, count, type, to, tag, comm, request);
}

extern "C" int MPI_Irecv(void* buffer, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm,
                         MPI_Request* request) {
  static auto* const irecv = next<decltype(MPI_Irecv)>("MPI_Irecv");
  starpipe::runtime::note_transfer();
  return irecv(buffer, count, type, from, tag, comm, request);
}
