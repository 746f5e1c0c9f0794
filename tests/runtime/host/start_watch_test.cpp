// SPDX-License-Identifier: Apache-2.0
#include "runtime/host/start_watch.hpp"

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace starpipe::runtime {
namespace {

using namespace std::chrono_literals;

void wait_for_start(std::chrono::milliseconds limit) {
  const StartWatch watch([](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); }, limit);
  std::this_thread::sleep_for(60s);
}

// Is hydra's proxy with three ranks, of which rank 1 runs `command`, and rank 2 nothing if it has `ended`.
// Ends with the status of rank 0, which starts MPI.
[[noreturn]] void launch(const char* command, bool ended, std::chrono::milliseconds limit) {
  prctl(PR_SET_NAME, "hydra_pmi_proxy");
  setenv("PMI_SIZE", "3", 1);
  setenv("MPI_LOCALNRANKS", "3", 1);
  std::array<pid_t, 3> ranks{};
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const std::string number = std::to_string(rank);
    setenv("PMI_RANK", number.c_str(), 1);
    setenv("MPI_LOCALRANKID", number.c_str(), 1);
    if (ended && rank == 2) break;
    ranks[rank] = fork();
    if (ranks[rank] != 0) continue;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_NAME, "rank");
    if (rank == 0) wait_for_start(limit);
    execl(command, command, "60", nullptr);
    _exit(127);
  }
  int status = 0;
  waitpid(ranks[0], &status, 0);
  _exit(WEXITSTATUS(status));
}

TEST(StartWatch, WaitsForALauncherThatStillStartsRanks) {
  const MissingFor::Clock::time_point start;
  MissingFor missing(start);
  EXPECT_EQ(missing.note(3, start + 1s), 1s);
  EXPECT_EQ(missing.note(3, start + 5s), 5s);
  EXPECT_EQ(missing.note(2, start + 6s), 0s) << "one more has come";
  EXPECT_EQ(missing.note(2, start + 8s), 2s);
  EXPECT_EQ(missing.note(3, start + 9s), 3s) << "one has ended";
  EXPECT_EQ(missing.note(0, start + 10s), 0s);
  EXPECT_EQ(missing.note(1, start + 11s), 1s);
}

TEST(StartWatchDeathTest, EndsAJobWhoseRanksDoNotAllStart) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(wait_for_start(200ms), ::testing::ExitedWithCode(1),
              "^rank 0: not all ranks have started MPI within 200ms: every rank needs the same command\n$");
}

TEST(StartWatchDeathTest, NamesRanksThatRunAnotherCommand) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      launch("/bin/sleep", false, 2s), ::testing::ExitedWithCode(1),
      "^rank 0: not all ranks have started MPI within 2000ms \\(rank 1 runs sleep, rank 2 runs sleep\\): "
      "every rank needs the same command\n$");
}

TEST(StartWatchDeathTest, NamesRanksThatHaveEnded) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(launch("/does/not/exist", true, 60s), ::testing::ExitedWithCode(1),
              "^rank 0: ranks 1, 2 have ended before MPI has started: every rank needs the same command\n$");
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
