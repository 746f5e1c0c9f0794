// SPDX-License-Identifier: Apache-2.0
// The property: after a crash at any point the newest committed checkpoint is readable and complete, and
// nothing else is ever taken for one.
#include <chrono>
#include <csignal>
#include <optional>
#include <random>
#include <stdexcept>
#include <thread>

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/checkpoint/checkpoints.hpp"
#include "runtime/checkpoint/manifest.hpp"
#include "support/folder.hpp"
#include "support/rounds.hpp"

namespace starpipe::runtime {
namespace {

using namespace testing;
namespace fs = std::filesystem;

/// Runs `work` in a process of its own. Returns its exit status; 0 when `work` returned.
template <class Work>
int in_child(Work work) {
  const pid_t child = fork();
  if (child == 0) {
    int status = 99;
    try {
      status = work();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
    }
    _exit(status);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/// True if the call throws std::runtime_error whose one line has `part`.
template <class Call>
bool fails_with(Call call, const std::string& part) {
  try {
    call();
  } catch (const std::runtime_error& error) {
    const std::string text = error.what();
    if (text.find(part) != std::string::npos && text.find('\n') == std::string::npos) return true;
    std::fprintf(stderr, "%s\n", error.what());
    return false;
  }
  std::fprintf(stderr, "no error with %s\n", part.c_str());
  return false;
}

TEST(CheckpointFaults, ALimitOfTheFileSizeAtAnyByte) {
  const Folder folder;
  write_checkpoint(folder.path(), 1);
  const auto part_bytes = fs::file_size(folder / "step-00000001/rank-0000.safetensors");
  const auto manifest_bytes = fs::file_size(folder / "step-00000001/manifest.json");
  ASSERT_GT(manifest_bytes, part_bytes);
  const int status = in_child([&] {
    signal(SIGXFSZ, SIG_IGN);
    for (std::uintmax_t bytes = 0; bytes < manifest_bytes; bytes += bytes < part_bytes ? 7 : 61) {
      const rlimit limit{bytes, RLIM_INFINITY};
      setrlimit(RLIMIT_FSIZE, &limit);
      if (!fails_with([&] { write_checkpoint(folder.path(), 2, 1); }, "File too large")) return 1;
      const Found found = find_newest(folder.path());
      if (!has_own_values(found)) return 2;
      // A part: the ranks have to agree that nothing comes of the checkpoint. The manifest: nothing is left.
      if (bytes >= part_bytes && !found.unfinished.empty()) return 3;
      abandon(folder.path(), 2);
    }
    const rlimit limit{RLIM_INFINITY, RLIM_INFINITY};
    setrlimit(RLIMIT_FSIZE, &limit);
    write_checkpoint(folder.path(), 2, 1);
    return 0;
  });
  EXPECT_EQ(status, 0);
  EXPECT_EQ(find_newest(folder.path()).manifest->step, 2);
}

/// Mounts a file system of `bytes` in a name space of this process. False when the system does not allow it.
bool mount_small_disk(const fs::path& place, std::size_t bytes) {
  const std::string options = "size=" + std::to_string(bytes);
  const auto try_mount = [&] {
    return mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
           mount("tmpfs", place.c_str(), "tmpfs", 0, options.c_str()) == 0;
  };
  if (unshare(CLONE_NEWNS) == 0 && try_mount()) return true;
  return unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0 && try_mount();
}

TEST(CheckpointFaults, AFullDisk) {
  const Folder folder;
  constexpr int no_mount = 77;
  const int status = in_child([&] {
    constexpr std::size_t count = 100'000;  // a checkpoint has 2 x 2 x 400 kB
    if (!mount_small_disk(folder.path(), 4'000'000)) return no_mount;
    write_checkpoint(folder.path(), 1, 1, 2, count);
    write_checkpoint(folder.path(), 2, 2, 2, count);
    for (int step = 3; step < 6; ++step) {
      const auto write = [&] { write_checkpoint(folder.path(), step, 2, 2, count); };
      if (!fails_with(write, "No space left on device")) return 1;
      const Found found = find_newest(folder.path());
      if (found.manifest->step != 2 || !found.damaged.empty() || !has_own_values(found, 2, count)) return 2;
      abandon(folder.path(), step);
    }
    fs::remove_all(folder / "step-00000001");  // the user makes room
    write_checkpoint(folder.path(), 6, 1, 2, count);
    return has_own_values(find_newest(folder.path()), 2, count) ? 0 : 3;
  });
  if (status == no_mount) GTEST_SKIP() << "no file system can be mounted here";
  EXPECT_EQ(status, 0);
}

TEST(CheckpointFaults, AFolderThatGoesAwayWhileAPartIsWritten) {
  const Folder folder;
  const fs::path checkpoints = folder / "ckpt";
  write_checkpoint(checkpoints, 1);
  const Manifest manifest = write_parts(checkpoints, 2);
  fs::remove_all(checkpoints);
  EXPECT_TRUE(fails_with([&] { commit(checkpoints, manifest, 1); }, "rank-0000.safetensors: No such file"));
  EXPECT_FALSE(find_newest(checkpoints).manifest);
  // The next one is written as always.
  write_checkpoint(checkpoints, 3, 1);
  EXPECT_TRUE(has_own_values(find_newest(checkpoints)));
  // A file is in the place of the folder.
  fs::remove_all(checkpoints);
  folder.write("ckpt", "x");
  EXPECT_TRUE(fails_with([&] { write_parts(checkpoints, 4); }, "Not a directory"));
}

/// Returns the next step that the child of `KilledAtRandom` has committed, read from a pipe. Waits for it.
/// Returns `before` if the child has ended without one.
std::int64_t next_step_in(int pipe_end, std::int64_t before) {
  std::int64_t step = before;
  return read(pipe_end, &step, sizeof step) == sizeof step ? step : before;
}

/// The last one, when the child has ended.
std::int64_t last_step_in(int pipe_end, std::int64_t before) {
  std::int64_t step = before;
  while (read(pipe_end, &step, sizeof step) == sizeof step) continue;
  return step;
}

/// Writes checkpoints, two of them kept, and reports each to the pipe, until the process is killed.
[[noreturn]] void write_for_ever(const fs::path& folder, int pipe_end) {
  const Found found = find_newest(folder);
  set_aside(found);
  for (std::int64_t step = found.manifest ? found.manifest->step + 1 : 1;; ++step) {
    write_checkpoint(folder, step, 2);
    if (write(pipe_end, &step, sizeof step) != sizeof step) _exit(1);
  }
}

TEST(CheckpointFaults, KilledAtRandom) {
  const Folder folder;
  std::mt19937 random(20260713);
  write_checkpoint(folder.path(), 1, 2);
  std::uniform_int_distribution<int> microseconds(0, 10'000);

  constexpr int cycles = rounds(200);
  std::int64_t committed = 1;
  int cut_short = 0;
  for (int cycle = 0; cycle < cycles; ++cycle) {
    int pipe_ends[2];
    ASSERT_EQ(pipe(pipe_ends), 0);
    const pid_t child = fork();
    if (child == 0) write_for_ever(folder.path(), pipe_ends[1]);
    close(pipe_ends[1]);
    // Where processes start slowly, the delay alone would be over before the first checkpoint.
    if (cycle % 2 == 0) committed = next_step_in(pipe_ends[0], committed);
    std::this_thread::sleep_for(std::chrono::microseconds(microseconds(random)));
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child failed in cycle " << cycle;
    committed = last_step_in(pipe_ends[0], committed);
    close(pipe_ends[0]);

    const Found found = find_newest(folder.path());
    ASSERT_TRUE(found.damaged.empty()) << found.damaged[0].reason;
    if (!found.unfinished.empty()) ++cut_short;
    ASSERT_TRUE(found.manifest) << "lost after step " << committed;
    // A kill between commit and report: one more than was reported.
    ASSERT_GE(found.manifest->step, committed);
    ASSERT_LE(found.manifest->step, committed + 1);
    ASSERT_TRUE(has_own_values(found));
    committed = found.manifest->step;
  }
  EXPECT_GT(committed, cycles / 2) << "killed too early to test anything";
  EXPECT_GT(cut_short, cycles / 10) << "killed too late to test anything";
  std::printf("%lld checkpoints, %d of %d kills while one was written or removed\n",
              static_cast<long long>(committed), cut_short, cycles);
}

/// Runs `work` in a process of its own until its `count`-th entry to or exit from a system call, and kills it
/// there. Returns its exit status when it ends earlier, -1 if it was killed, and nullopt if the system
/// does not allow stopping processes.
template <class Work>
std::optional<int> killed_at_call(int count, Work work) {
  const pid_t child = fork();
  if (child == 0) {
    if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(77);
    raise(SIGSTOP);
    work();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (!WIFSTOPPED(status)) return {};
  for (int i = 0; i < count; ++i) {
    if (ptrace(PTRACE_SYSCALL, child, nullptr, nullptr) != 0) break;
    waitpid(child, &status, 0);
    if (WIFEXITED(status)) return WEXITSTATUS(status);
  }
  kill(child, SIGKILL);
  waitpid(child, &status, 0);
  return -1;
}

TEST(CheckpointFaults, KilledAtEachSystemCall) {
  const Folder folder;
  bool ended = false;
  std::int64_t step = 1;
  write_checkpoint(folder.path(), step, 1);
  int calls = 1;
  for (; !ended; calls += round_stride) {
    const std::optional<int> status = killed_at_call(calls, [&] {
      set_aside(find_newest(folder.path()));
      write_checkpoint(folder.path(), step + 1, 1);
    });
    if (!status) GTEST_SKIP() << "processes cannot be traced here";
    if (*status >= 0) {
      ASSERT_EQ(*status, 0);
      ended = true;
    }
    const Found found = find_newest(folder.path());
    ASSERT_TRUE(found.damaged.empty()) << calls << ": " << found.damaged[0].reason;
    ASSERT_TRUE(found.manifest) << calls;
    ASSERT_TRUE(found.manifest->step == step || found.manifest->step == step + 1) << calls;
    ASSERT_TRUE(has_own_values(found)) << calls;
    step = found.manifest->step;
  }
  EXPECT_GT(calls, 100);
  EXPECT_GT(step, 2);
}

}  // namespace
}  // namespace starpipe::runtime
