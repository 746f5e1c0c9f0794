// SPDX-License-Identifier: Apache-2.0
#include "runtime/host/start_watch.hpp"

#include <chrono>
#include <thread>

#include <gtest/gtest.h>

namespace starpipe::runtime {
namespace {

using namespace std::chrono_literals;

TEST(StartWatchDeathTest, EndsAJobWhoseRanksDoNotAllStart) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const StartWatch watch(200ms);
        std::this_thread::sleep_for(60s);
      },
      testing::ExitedWithCode(1),
      "^starpipe: rank 0: not all ranks have started MPI within 200ms: every rank needs the same command\n$");
}

TEST(StartWatch, IsQuietWhenMpiStarts) {
  const auto start = std::chrono::steady_clock::now();
  { const StartWatch watch; }
  EXPECT_LT(std::chrono::steady_clock::now() - start, 60s);
}

}  // namespace
}  // namespace starpipe::runtime
