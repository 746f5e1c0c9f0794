// SPDX-License-Identifier: Apache-2.0
#include "runtime/host/signal_requests.hpp"

#include <chrono>
#include <csignal>
#include <thread>

#include <gtest/gtest.h>
#include <unistd.h>

#include "runtime/started_mpi.hpp"

namespace starpipe::runtime {
namespace {

// Stands for what SIGTERM did before the run handled it: it ended the process. This test continues, and lets
// the other rank continue. `raise` calls it, so MPI is not in the middle of a call.
bool is_ended = false;
void end(int /*signal*/) {
  if (is_ended) return;
  is_ended = true;
  MPI_Send(nullptr, 0, MPI_INT, 1, 0, testing::mpi->comm());
}

// SIGTERM to this process, as soon as it asks for something.
void send_when_accepted() {
  struct sigaction now {};
  do {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    sigaction(SIGTERM, nullptr, &now);
  } while (now.sa_handler == end);
  kill(getpid(), SIGTERM);
}

// Rank 1 is as a rank that a signal to all ranks has ended before it accepts requests: rank 0 would wait for
// it indefinitely. A process accepts requests once, so this is the only test.
TEST(SignalRequests, EndARankThatWaitsForAnEndedOneAndStayRequestsOtherwise) {
  const Mpi& mpi = *testing::mpi;
  std::signal(SIGTERM, end);
  std::jthread sender;
  if (mpi.rank() == 0) sender = std::jthread(send_when_accepted);
  if (mpi.rank() == 1) MPI_Recv(nullptr, 0, MPI_INT, 0, 0, mpi.comm(), MPI_STATUS_IGNORE);
  accept_signal_requests(mpi, SIGUSR1);
  EXPECT_EQ(is_ended, mpi.rank() == 0);
  EXPECT_EQ(take_signal_requests(), mpi.rank() == 0 ? SignalRequest::stop : SignalRequest::none);
  EXPECT_TRUE(is_request(SIGTERM));
  EXPECT_TRUE(is_request(SIGUSR1));
  EXPECT_FALSE(is_request(SIGINT));
  std::raise(SIGUSR1);
  std::raise(SIGUSR1);  // the same one, from another process
  EXPECT_EQ(take_signal_requests(), SignalRequest::checkpoint);
  if (mpi.rank() == 1) {
    std::raise(SIGUSR1);
    std::raise(SIGTERM);
    std::raise(SIGTERM);
    EXPECT_EQ(take_signal_requests(), SignalRequest::stop);
    EXPECT_FALSE(is_ended);
  }
  EXPECT_EQ(take_signal_requests(), SignalRequest::none);
}

}  // namespace
}  // namespace starpipe::runtime
