// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "runtime/host/lost_rank.hpp"

namespace starpipe::runtime {
namespace {

using namespace std::chrono_literals;

TEST(StartWatchDeathTest, EndsAJobWhoseRanksDoNotAllStart) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const StartWatch watch([](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); },
                               200ms);
        std::this_thread::sleep_for(60s);
      },
      ::testing::ExitedWithCode(1),
      "^rank 0: not all ranks have started MPI within 200ms: every rank needs the same command\n$");
}

// A destructor that waited for the limit, five minutes, would exceed the limit of the test.
TEST(StartWatchDeathTest, IsQuietWhenMpiStarts) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        {
          const StartWatch watch([](const std::string&) {});
        }
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "^$");
}

}  // namespace
}  // namespace starpipe::runtime
