// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/signals.hpp"
#include "cli/processes/processes.hpp"

namespace starpipe::cli {
namespace {

using namespace std::chrono_literals;

TEST(Subprocess, AProgramInheritsTheStandardStreamsOnly) {
  // The program inherits the descriptors that this test inherited, but neither the file of its output nor
  // held signals.
  const auto count = [](const char* folder) {
    return std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator());
  };
  const auto own = count("/proc/self/fd");
  const SubprocessResult program = run_program({"ls", "/proc/self/fd"}, 20s);
  EXPECT_EQ(program.failure, "");
  EXPECT_EQ(std::ranges::count(program.output, '\n'), own) << program.output;
}

TEST(Subprocess, TellsHowItEnded) {
  EXPECT_EQ(run_in_subprocess([] { return std::string("said"); }, 20s).output, "said");
  EXPECT_EQ(run_in_subprocess([]() -> std::string { _exit(0); }, 20s).failure, "it ended with exit status 0");
  EXPECT_EQ(run_program({"sh", "-c", "exit 3"}, 20s).failure, "it ended with exit status 3");
  EXPECT_EQ(run_program({"sh", "-c", "kill -TERM $$"}, 20s).failure.substr(0, 27),
            "it was ended by signal 15 (");
  EXPECT_EQ(run_program({"sleep", "100"}, 1s).failure, "it did not end within 1 s");
  // Its output is closed long before its end.
  EXPECT_EQ(run_program({"sh", "-c", "exec sleep 100 >/dev/null 2>&1"}, 1s).failure,
            "it did not end within 1 s");
}

// A grandchild holds the pipe open, and would write to it.
TEST(Subprocess, NothingOfItsGroupOutlivesItsEnd) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  {
    ChildProcess child([&] {
      if (fork() == 0) {
        sleep(10);
        _exit(write(ends[1], "x", 1) == 1 ? 0 : 1);
      }
      _exit(0);
    });
    close(ends[1]);
    while (!child.status()) usleep(1000);
    EXPECT_EQ(child.status(), 0);
  }
  char byte = 0;
  EXPECT_EQ(read(ends[0], &byte, 1), 0) << "the grandchild lives";
  close(ends[0]);
}

TEST(Subprocess, ASignalEndsTheWaitAndTheProcess) {
  const HeldSignals held;
  std::raise(SIGTERM);
  try {
    run_program({"sleep", "100"}, 50s);
    FAIL() << "nothing was thrown";
  } catch (const EndedBySignal& end) {
    EXPECT_EQ(end.signal(), SIGTERM);
  }
}

}  // namespace
}  // namespace starpipe::cli
