// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <mpi.h>

#include "runtime/host/mpi.hpp"
#include "runtime/engine/rank_status.hpp"

namespace starpipe::runtime {

/// Small messages in which each rank sends its status to every other rank, on a communicator of their own.
/// One thread calls the member functions. They never wait for another rank, so a rank that is lost or stopped
/// delays no other rank.
class StatusExchange {
 public:
  /// Collective. `mpi` must outlive this.
  explicit StatusExchange(const Mpi& mpi);
  /// Collective. Receives the messages that are still on their way.
  ~StatusExchange();
  StatusExchange(const StatusExchange&) = delete;
  StatusExchange& operator=(const StatusExchange&) = delete;

  /// Sends `mine` to all other ranks, except those that have not received the previous message yet.
  void send(const RankStatus& mine);
  /// The messages that have arrived since the last call, with their ranks, in the order of arrival.
  std::vector<std::pair<int, RankStatus>> receive();

 private:
  RankStatus receive_from(int rank);

  const Mpi& mpi_;
  MPI_Comm comm_ = MPI_COMM_NULL;        // none when there is one rank
  std::vector<MPI_Request> sending_;     // by rank
  std::vector<RankStatus> last_sent_;    // by rank: the message that is being sent
  std::vector<std::uint64_t> sent_;      // by rank: number of messages
  std::vector<std::uint64_t> received_;  // by rank: number of messages
};

}  // namespace starpipe::runtime
