// SPDX-License-Identifier: Apache-2.0
#include <csignal>
#include <optional>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/environment.hpp"
#include "runtime/checkpoint/checkpoint_files.hpp"
#include "support/folder.hpp"
#include "support/message_of.hpp"

namespace starpipe::runtime {
namespace {

namespace fs = std::filesystem;

TEST(FolderLock, KeepsASecondRunAway) {
  const Folder folder;
  const fs::path checkpoints = folder / "new/ckpt";
  const ScopedVariable job("SLURM_JOB_ID", "77");
  {
    const FolderLock lock(checkpoints);
    EXPECT_TRUE(lock.warning().empty());
    expect_input_error([&] { const FolderLock second(checkpoints); },
                       "the checkpoint folder " + checkpoints.string() + " is in use by process " +
                           std::to_string(getpid()) + " on host ");
    // By another name, too.
    fs::create_directory_symlink(checkpoints, folder / "link");
    expect_input_error([&] { const FolderLock second(folder / "link"); }, ", Slurm job 77;");
  }
  const FolderLock third(checkpoints);
}

TEST(FolderLock, TellsItsFolderFromOthersOfItsName) {
  const Folder folder;
  const FolderLock lock(folder / "one");
  EXPECT_TRUE(shows_lock(folder / "one", lock.text()));
  EXPECT_FALSE(shows_lock(folder / "two", lock.text(), 1)) << "there is no such folder";
  std::string before;
  { before = FolderLock(folder / "two").text(); }
  EXPECT_FALSE(shows_lock(folder / "two", lock.text(), 1)) << "the lock of this process is not of this run";
  EXPECT_TRUE(shows_lock(folder / "two", before));
}

TEST(FolderLock, EndsWithAKilledProcess) {
  const Folder folder;
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const FolderLock lock(folder.path());
    if (write(ready[1], "x", 1) == 1) pause();
    _exit(0);
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  expect_input_error([&] { const FolderLock lock(folder.path()); }, "by process " + std::to_string(child));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  const FolderLock lock(folder.path());
  close(ready[0]);
  close(ready[1]);
}

TEST(FolderLock, IsTakenAgainWhenTheFolderWasRemoved) {
  const Folder folder;
  const fs::path checkpoints = folder / "ckpt";
  FolderLock lock(checkpoints);
  lock.renew();
  fs::remove_all(checkpoints);
  lock.renew();
  expect_input_error([&] { const FolderLock second(checkpoints); }, "in use");
  fs::remove_all(checkpoints);
  const std::optional<FolderLock> second(std::in_place, checkpoints);
  expect_input_error([&] { lock.renew(); }, "in use");
}

TEST(FolderLock, ADamagedFileIsStillALock) {
  const Folder folder;
  for (const std::string content : {"", "{}", "\xff\x00", "[1]", "{\"host\": 1, \"pid\": \"x\"}"}) {
    const FolderLock lock(folder.path());
    folder.write("lock", content);
    expect_input_error([&] { const FolderLock second(folder.path()); }, "is in use by another process;");
  }
}

TEST(FolderLock, ALinkMayNameAFolderThatIsNotThereYet) {
  const Folder folder;
  fs::create_directory_symlink("new/folder", folder / "link");
  const FolderLock lock(folder / "link");
  EXPECT_TRUE(fs::exists(folder / "new/folder/lock"));
}

TEST(FolderLock, AFolderThatCannotBeWrittenIsNamed) {
  const Folder folder;
  const fs::path file = folder.write("file", "x");
  expect_input_error([&] { const FolderLock lock(file); }, "cannot write checkpoints to " + file.string());
  expect_input_error([&] { const FolderLock lock(file / "ckpt"); }, "cannot write checkpoints to");
  fs::create_directories(folder / "ckpt/lock");
  expect_input_error([&] { const FolderLock lock(folder / "ckpt"); }, "ckpt/lock: Is a directory");
}

TEST(FolderLock, AFolderThatOnlyTheLockFileIsOpenIn) {
  const Folder folder;
  { const FolderLock lock(folder.path()); }
  fs::permissions(folder.path(), fs::perms{0555});
  fs::permissions(folder / "lock", fs::perms{0666});
  const pid_t child = fork();
  if (child == 0) {
    if (getuid() == 0 && setuid(65534) != 0) _exit(77);  // root may write anywhere
    try {
      const FolderLock lock(folder.path());
    } catch (const InputError& error) {
      const std::string expected =
          "cannot write checkpoints to " + folder.path().string() + ": Permission denied";
      _exit(error.what() == expected ? 0 : 2);
    }
    _exit(1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  fs::permissions(folder.path(), fs::perms{0755});
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "root cannot become another user here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace starpipe::runtime
