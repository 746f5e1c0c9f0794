// SPDX-License-Identifier: Apache-2.0
// The watchdog ends a run only when a step makes no progress.
#include "runtime/engine/watchdog.hpp"

#include <atomic>
#include <chrono>
#include <future>
#include <string>
#include <thread>

#include <gmock/gmock.h>

namespace starpipe::runtime {
namespace {

using namespace std::chrono_literals;

TEST(Watchdog, EndsARunThatMakesNoProgress) {
  std::promise<std::string> message;
  std::atomic<bool> told = false;
  Watchdog watchdog(0.1, [&](const std::string& text) {
    if (!told.exchange(true)) message.set_value(text);
  });
  watchdog.begin_step(7);
  EXPECT_THAT(message.get_future().get(),
              ::testing::StartsWith("no task finished for 0.1 s in step 7 (runtime.timeout)"));
}

TEST(Watchdog, LeavesAloneARunThatProgressesOrIsBetweenSteps) {
  std::atomic<int> calls = 0;
  Watchdog watchdog(1, [&](const std::string&) { ++calls; });
  std::this_thread::sleep_for(1300ms);
  watchdog.begin_step(0);
  for (int task = 0; task < 26; ++task) {
    std::this_thread::sleep_for(50ms);
    watchdog.note_progress();
  }
  watchdog.end_step();
  std::this_thread::sleep_for(1300ms);
  EXPECT_EQ(calls, 0);
}

}  // namespace
}  // namespace starpipe::runtime
