// SPDX-License-Identifier: Apache-2.0
#include "runtime/host/simulated_exchange.hpp"

#include <utility>

#include <simgrid/barrier.h>
#include <simgrid/forward.h>
#include <smpi/mpi.h>
#include <smpi/smpi.h>

#include "starpipe/base/index.hpp"

namespace starpipe::runtime {
namespace {

// SMPI itself keeps a copy of shorter messages (smpi/send-is-detached-thresh).
constexpr std::size_t carried_bytes = 65536;

void copy_if_short(smx_activity_t message, void* from, std::size_t bytes) {
  if (bytes >= carried_bytes) return;
  // SMPI passes a CommImpl as its base class, which comes first in it. Its headers do not define the class.
  smpi_comm_copy_buffer_callback(reinterpret_cast<simgrid::kernel::activity::CommImpl*>(message), from,
                                 bytes);
}

int bytes_of(MPI_Datatype type) {
  int bytes = 0;
  MPI_Type_size(type, &bytes);
  return bytes;
}

}  // namespace

void leave_out_data() { smpi_comm_set_copy_data_callback(copy_if_short); }

// The ranks are coroutines of one thread, and switch only in sg_barrier_wait.
std::vector<std::string> exchange_texts(int rank, int ranks, std::string mine) {
  static std::vector<std::string> texts(index(ranks));
  static const sg_bar_t all_ranks = sg_barrier_init(static_cast<unsigned>(ranks));
  texts[index(rank)] = std::move(mine);
  sg_barrier_wait(all_ranks);
  std::vector<std::string> result = texts;
  sg_barrier_wait(all_ranks);  // no rank may write its next text before all have read this one
  return result;
}

}  // namespace starpipe::runtime

// SMPI packs data of a derived type, which contiguous ones are to it, into a buffer of its own as soon as a
// message begins, however long it waits for the other rank. So messages have plain bytes here. All types of
// StarPU-MPI are contiguous, since all data of starpipe are vectors. The linker has StarPU-MPI call these two
// functions (--wrap, src/CMakeLists.txt).
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)
extern "C" int __wrap_MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag,
                                MPI_Comm comm, MPI_Request* request) {
  return MPI_Isend(data, count * starpipe::runtime::bytes_of(type), MPI_BYTE, to, tag, comm, request);
}

extern "C" int __wrap_MPI_Irecv(void* data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm,
                                MPI_Request* request) {
  return MPI_Irecv(data, count * starpipe::runtime::bytes_of(type), MPI_BYTE, from, tag, comm, request);
}
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
