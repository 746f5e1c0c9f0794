// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/watchdog.hpp"

#include <chrono>
#include <utility>

#include <fmt/format.h>

namespace starpipe::runtime {
namespace {

constexpr std::chrono::milliseconds interval(200);  // between looks

}  // namespace

Watchdog::Watchdog(double timeout, std::function<void(const std::string&)> end_run)
    : timeout_(timeout),
      end_run_(std::move(end_run)),
      thread_([this](const std::stop_token& stop) { watch(stop); }) {}

void Watchdog::begin_step(int step) {
  step_ = step;
  running_ = true;
}

void Watchdog::watch(const std::stop_token& stop) {
  auto last_progress = std::chrono::steady_clock::now();
  std::uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    wake_.wait_for(lock, stop, interval, [] { return false; });
    const auto now = std::chrono::steady_clock::now();
    if (const std::uint64_t count = finished_; count != seen || !running_) {
      seen = count;
      last_progress = now;
    }
    if (std::chrono::duration<double>(now - last_progress).count() < timeout_) continue;
    end_run_(fmt::format("no task finished for {} s in step {} (runtime.timeout): a rank is lost or stuck",
                         timeout_, step_.load()));
  }
}

}  // namespace starpipe::runtime
