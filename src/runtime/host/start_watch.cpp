// SPDX-License-Identifier: Apache-2.0
#include "runtime/host/start_watch.hpp"

#include <algorithm>
#include <utility>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "runtime/host/lost_rank.hpp"

namespace starpipe::runtime {

StartWatch::StartWatch(std::function<void(const std::string& line)> say, std::chrono::milliseconds limit)
    : thread_([this, say = std::move(say), limit] {
        // The lowest waiting rank reports and ends the job. Each higher rank waits one second longer, up to
        // ten, so that only one message appears.
        const auto pause = std::chrono::seconds(std::min(launcher_rank().value_or(0), 10));
        std::unique_lock lock(mutex_);
        if (wake_.wait_for(lock, limit + pause, [this] { return started_; })) return;
        if (say) {
          say(fmt::format(
              "rank {}: not all ranks have started MPI within {}: every rank needs the same command",
              launcher_rank().value_or(0), limit));
        }
        // The launcher reads the line before it reads the request to end the job.
        wake_.wait_for(lock, std::chrono::milliseconds(abort_pause_ms), [this] { return started_; });
        end_job();
      }) {}

StartWatch::~StartWatch() {
  {
    const std::scoped_lock lock(mutex_);
    started_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

}  // namespace starpipe::runtime
