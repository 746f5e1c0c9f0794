// SPDX-License-Identifier: Apache-2.0
#include "runtime/host/start_watch.hpp"

#include <algorithm>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "base/messages.hpp"
#include "runtime/host/lost_rank.hpp"

namespace starpipe::runtime {

StartWatch::StartWatch(std::chrono::milliseconds limit)
    : thread_([this, limit] {
        // Of the ranks that wait the lowest says so, and ends the job before the next one's pause is over.
        const auto pause = std::chrono::seconds(std::min(launcher_rank().value_or(0), 10));
        std::unique_lock lock(mutex_);
        if (wake_.wait_for(lock, limit + pause, [this] { return started_; })) return;
        print_message(
            fmt::format("starpipe: rank {}: not all ranks have started MPI within {}: every rank needs the "
                        "same command\n",
                        launcher_rank().value_or(0), limit));
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
