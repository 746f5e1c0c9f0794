// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/stash_file.hpp"

#include <csignal>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "starpipe/base/error.hpp"

namespace starpipe::runtime {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(StashFile, GivesBackWhatWasWritten) {
  StashFile file(::testing::TempDir());
  std::vector<float> first(1000, 1.5F);
  std::vector<float> second(1000, 2.5F);
  std::vector<float> small(10, 3.5F);
  file.write(4, first);
  file.write(9, second);
  file.write(1, small);
  EXPECT_EQ(file.bytes(), 8040U);
  std::vector<float> back(1000);
  file.read(4, back);
  EXPECT_EQ(back, first);
  file.write(12, second);  // takes the place of the first
  EXPECT_EQ(file.bytes(), 8040U);
  file.read(9, back);
  EXPECT_EQ(back, second);
  file.read(12, back);
  EXPECT_EQ(back, second);
  std::vector<float> little(10);
  file.read(1, little);
  EXPECT_EQ(little, small);
}

TEST(StashFile, LeavesNothingBehind) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "stash_file_test";
  std::filesystem::create_directories(folder);
  StashFile file(folder);
  file.write(0, std::vector<float>(100));
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  std::filesystem::remove(folder);
}

TEST(StashFile, IsForManyThreads) {
  StashFile file(::testing::TempDir());
  std::vector<std::jthread> threads;
  std::vector<int> wrong(8, 0);
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&file, &wrong, t] {
      for (int round = 0; round < 200; ++round) {
        const std::vector<float> stash(100, static_cast<float>(t * 1000 + round));
        std::vector<float> back(100);
        file.write(static_cast<plan::JobId>(t), stash);
        file.read(static_cast<plan::JobId>(t), back);
        wrong[static_cast<std::size_t>(t)] += back == stash ? 0 : 1;
      }
    });
  }
  threads.clear();
  EXPECT_EQ(wrong, std::vector<int>(8, 0));
}

TEST(StashFile, NamesAFolderThatIsNoPlaceForIt) {
  EXPECT_THAT([] { StashFile("/nowhere/at all"); },
              ThrowsMessage<InputError>(AllOf(HasSubstr("runtime.stash_folder: /nowhere/at all"),
                                              HasSubstr("No such file or directory"))));
}

// A limit on the size of files stands for a full disk.
TEST(StashFile, SaysThatTheDiskIsFull) {
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  auto* const handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = 4096, .rlim_max = before.rlim_max};
  StashFile file(::testing::TempDir());
  setrlimit(RLIMIT_FSIZE, &small);
  EXPECT_THAT(
      [&] { file.write(0, std::vector<float>(10'000)); },
      ThrowsMessage<RunFailure>(AllOf(HasSubstr("a stash cannot be written"), HasSubstr("File too large"))));
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
}

}  // namespace
}  // namespace starpipe::runtime
