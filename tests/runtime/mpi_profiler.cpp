// SPDX-License-Identifier: Apache-2.0
// A profiler through MPI's profiling interface, to be preloaded: appends a line for each process to the file
// that STARPIPE_TEST_CALLS names, with the number of calls of each function: "rank=0 Test=12 Isend=3 ...".
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>

#include <mpi.h>

namespace {

enum Function {
  test,
  isend,
  issend,
  send,
  irecv,
  recv,
  barrier,
  ibarrier,
  ibcast,
  allreduce,
  iallreduce,
  igather,
  igatherv,
  allgather,
  iallgather,
  iallgatherv,
  alltoall,
  comm_dup,
  comm_idup
};
constexpr std::array names = {"Test",        "Isend",    "Issend",   "Send",      "Irecv",
                              "Recv",        "Barrier",  "Ibarrier", "Ibcast",    "Allreduce",
                              "Iallreduce",  "Igather",  "Igatherv", "Allgather", "Iallgather",
                              "Iallgatherv", "Alltoall", "Comm_dup", "Comm_idup"};
std::array<std::atomic<long>, names.size()> calls;

}  // namespace

extern "C" int MPI_Test(MPI_Request* a, int* b, MPI_Status* c) {
  ++calls[test];
  return PMPI_Test(a, b, c);
}

extern "C" int MPI_Isend(const void* a, int b, MPI_Datatype c, int d, int e, MPI_Comm f, MPI_Request* g) {
  ++calls[isend];
  return PMPI_Isend(a, b, c, d, e, f, g);
}

extern "C" int MPI_Issend(const void* a, int b, MPI_Datatype c, int d, int e, MPI_Comm f, MPI_Request* g) {
  ++calls[issend];
  return PMPI_Issend(a, b, c, d, e, f, g);
}

extern "C" int MPI_Send(const void* a, int b, MPI_Datatype c, int d, int e, MPI_Comm f) {
  ++calls[send];
  return PMPI_Send(a, b, c, d, e, f);
}

extern "C" int MPI_Irecv(void* a, int b, MPI_Datatype c, int d, int e, MPI_Comm f, MPI_Request* g) {
  ++calls[irecv];
  return PMPI_Irecv(a, b, c, d, e, f, g);
}

extern "C" int MPI_Recv(void* a, int b, MPI_Datatype c, int d, int e, MPI_Comm f, MPI_Status* g) {
  ++calls[recv];
  return PMPI_Recv(a, b, c, d, e, f, g);
}

extern "C" int MPI_Barrier(MPI_Comm a) {
  ++calls[barrier];
  return PMPI_Barrier(a);
}

extern "C" int MPI_Ibarrier(MPI_Comm a, MPI_Request* b) {
  ++calls[ibarrier];
  return PMPI_Ibarrier(a, b);
}

extern "C" int MPI_Ibcast(void* a, int b, MPI_Datatype c, int d, MPI_Comm e, MPI_Request* f) {
  ++calls[ibcast];
  return PMPI_Ibcast(a, b, c, d, e, f);
}

extern "C" int MPI_Allreduce(const void* a, void* b, int c, MPI_Datatype d, MPI_Op e, MPI_Comm f) {
  ++calls[allreduce];
  return PMPI_Allreduce(a, b, c, d, e, f);
}

extern "C" int MPI_Iallreduce(const void* a, void* b, int c, MPI_Datatype d, MPI_Op e, MPI_Comm f,
                              MPI_Request* g) {
  ++calls[iallreduce];
  return PMPI_Iallreduce(a, b, c, d, e, f, g);
}

extern "C" int MPI_Igather(const void* a, int b, MPI_Datatype c, void* d, int e, MPI_Datatype f, int g,
                           MPI_Comm h, MPI_Request* i) {
  ++calls[igather];
  return PMPI_Igather(a, b, c, d, e, f, g, h, i);
}

extern "C" int MPI_Igatherv(const void* a, int b, MPI_Datatype c, void* d, const int* e, const int* f,
                            MPI_Datatype g, int h, MPI_Comm i, MPI_Request* j) {
  ++calls[igatherv];
  return PMPI_Igatherv(a, b, c, d, e, f, g, h, i, j);
}

extern "C" int MPI_Allgather(const void* a, int b, MPI_Datatype c, void* d, int e, MPI_Datatype f,
                             MPI_Comm g) {
  ++calls[allgather];
  return PMPI_Allgather(a, b, c, d, e, f, g);
}

extern "C" int MPI_Iallgather(const void* a, int b, MPI_Datatype c, void* d, int e, MPI_Datatype f,
                              MPI_Comm g, MPI_Request* h) {
  ++calls[iallgather];
  return PMPI_Iallgather(a, b, c, d, e, f, g, h);
}

extern "C" int MPI_Iallgatherv(const void* a, int b, MPI_Datatype c, void* d, const int* e, const int* f,
                               MPI_Datatype g, MPI_Comm h, MPI_Request* i) {
  ++calls[iallgatherv];
  return PMPI_Iallgatherv(a, b, c, d, e, f, g, h, i);
}

extern "C" int MPI_Alltoall(const void* a, int b, MPI_Datatype c, void* d, int e, MPI_Datatype f,
                            MPI_Comm g) {
  ++calls[alltoall];
  return PMPI_Alltoall(a, b, c, d, e, f, g);
}

extern "C" int MPI_Comm_dup(MPI_Comm a, MPI_Comm* b) {
  ++calls[comm_dup];
  return PMPI_Comm_dup(a, b);
}

extern "C" int MPI_Comm_idup(MPI_Comm a, MPI_Comm* b, MPI_Request* c) {
  ++calls[comm_idup];
  return PMPI_Comm_idup(a, b, c);
}

extern "C" int MPI_Finalize() {
  if (const char* name = std::getenv("STARPIPE_TEST_CALLS")) {
    int rank = 0;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (std::FILE* file = std::fopen(name, "a")) {
      std::fprintf(file, "rank=%d", rank);
      for (std::size_t f = 0; f < names.size(); ++f) std::fprintf(file, " %s=%ld", names[f], calls[f].load());
      std::fprintf(file, "\n");
      std::fclose(file);
    }
  }
  return PMPI_Finalize();
}
