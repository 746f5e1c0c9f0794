// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/status_exchange.hpp"

#include <type_traits>

#include "starpipe/base/index.hpp"

namespace starpipe::runtime {
namespace {

constexpr int status_tag = 0;
constexpr int bytes = sizeof(RankStatus);
static_assert(std::is_trivially_copyable_v<RankStatus>);

}  // namespace

StatusExchange::StatusExchange(const Mpi& mpi)
    : mpi_(mpi),
      sending_(index(mpi.ranks()), MPI_REQUEST_NULL),
      last_sent_(sending_.size()),
      sent_(sending_.size(), 0),
      received_(sending_.size(), 0) {
  if (mpi.ranks() > 1) MPI_Comm_dup(mpi.comm(), &comm_);
}

StatusExchange::~StatusExchange() {
  if (comm_ == MPI_COMM_NULL) return;
  mpi_.barrier();  // this wait sleeps; the calls below then return at once
  std::vector<std::uint64_t> to_me(sent_.size());
  MPI_Alltoall(sent_.data(), 1, MPI_UINT64_T, to_me.data(), 1, MPI_UINT64_T, comm_);
  for (std::size_t r = 0; r < to_me.size(); ++r) {
    while (received_[r] < to_me[r]) receive_from(static_cast<int>(r));
  }
  MPI_Waitall(static_cast<int>(sending_.size()), sending_.data(), MPI_STATUSES_IGNORE);
  MPI_Comm_free(&comm_);
}

void StatusExchange::send(const RankStatus& mine) {
  for (std::size_t r = 0; r < sending_.size(); ++r) {
    if (r == index(mpi_.rank())) continue;
    int taken = 1;
    // Not MPI_Test and MPI_Isend, by which the program knows StarPU-MPI's thread.
    PMPI_Test(&sending_[r], &taken, MPI_STATUS_IGNORE);
    if (taken == 0) continue;
    last_sent_[r] = mine;
    PMPI_Isend(&last_sent_[r], bytes, MPI_BYTE, static_cast<int>(r), status_tag, comm_, &sending_[r]);
    ++sent_[r];
  }
}

RankStatus StatusExchange::receive_from(int rank) {
  RankStatus status;
  MPI_Recv(&status, bytes, MPI_BYTE, rank, status_tag, comm_, MPI_STATUS_IGNORE);
  ++received_[index(rank)];
  return status;
}

std::vector<std::pair<int, RankStatus>> StatusExchange::receive() {
  std::vector<std::pair<int, RankStatus>> news;
  if (comm_ == MPI_COMM_NULL) return news;
  MPI_Status from;
  for (int is_there = 0;;) {
    MPI_Iprobe(MPI_ANY_SOURCE, status_tag, comm_, &is_there, &from);
    if (is_there == 0) return news;
    news.emplace_back(from.MPI_SOURCE, receive_from(from.MPI_SOURCE));
  }
}

}  // namespace starpipe::runtime
