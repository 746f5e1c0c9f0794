// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>

namespace starpipe::runtime {

/// True if the launcher has started other ranks of this host as other users, who cannot share memory.
bool has_ranks_of_other_users();

/// Collective, by one message of each rank up a binary tree, when MPI has started. On rank 0, returns a rank
/// whose variables of MPICH differ from another rank's; otherwise nullopt. Such ranks may use different
/// algorithms, and wait for each other indefinitely in a collective call of MPI.
std::optional<int> rank_with_other_variables();

/// MPI starts when every rank of the launcher has called MPI_Init. A rank that runs another command never
/// does, and the others would wait indefinitely.
inline constexpr std::chrono::seconds start_limit{300};

/// How long processes of ranks have been missing without one more coming. A launcher starts its ranks
/// sequentially, and many of them take longer than a rank may be missing.
class MissingFor {
 public:
  using Clock = std::chrono::steady_clock;
  explicit MissingFor(Clock::time_point start) : since_(start) {}
  /// Returns the time for which ranks have been missing at `now`. `missing`: their number.
  Clock::duration note(std::size_t missing, Clock::time_point now) {
    if (missing == 0 || missing < before_) since_ = now;
    before_ = missing;
    return now - since_;
  }

 private:
  Clock::time_point since_;
  std::size_t before_ = 0;
};

/// Calls `say` with one line and ends the job with exit status 1, unless it is destroyed within the limit, or
/// within seconds after the process of another rank of this host has ended. The line names the ranks that do
/// not start MPI, as far as this host shows them. It lives while MPI starts.
class StartWatch {
 public:
  explicit StartWatch(std::function<void(const std::string& line)> say,
                      std::chrono::milliseconds limit = start_limit);

 private:
  // Returns the reason why MPI does not start; empty after a stop.
  std::string watch(const std::stop_token& stop, std::chrono::milliseconds limit);

  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::jthread thread_;  // last: it uses the other members
};

}  // namespace starpipe::runtime
