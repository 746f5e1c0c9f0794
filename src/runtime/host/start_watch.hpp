// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace starpipe::runtime {

/// MPI starts when every rank of the launcher has called MPI_Init. A rank that runs another command never
/// does, and the others would wait indefinitely.
inline constexpr std::chrono::seconds start_limit{300};

/// Calls `say` with one line and ends the job with exit status 1, unless it is destroyed within the limit. It
/// lives while MPI starts.
class StartWatch {
 public:
  explicit StartWatch(std::function<void(const std::string& line)> say,
                      std::chrono::milliseconds limit = start_limit);
  ~StartWatch();
  StartWatch(const StartWatch&) = delete;
  StartWatch& operator=(const StartWatch&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  bool started_ = false;  // guarded by mutex_
  std::thread thread_;    // last: it uses the other members
};

}  // namespace starpipe::runtime
