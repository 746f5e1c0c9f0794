// SPDX-License-Identifier: Apache-2.0
// The property: after a crash at any point the newest committed checkpoint is readable and complete, and
// nothing else is ever taken for one.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <optional>
#include <random>
#include <stdexcept>
#include <thread>

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/checkpoint/checkpoints.hpp"
#include "runtime/checkpoint/manifest.hpp"
#include "support/folder.hpp"
#include "support/message_of.hpp"
#include "support/rounds.hpp"

namespace starpipe::runtime {
namespace {

using namespace testing;
namespace fs = std::filesystem;

void overwrite(const fs::path& file, std::string_view bytes) {
  std::ofstream(file, std::ios::binary | std::ios::trunc)
      .write(bytes.data(), static_cast<long>(bytes.size()));
}

/// A folder with the checkpoints of steps 1 and 2. Damage to the checkpoint of step 2 must be found.
class CheckpointDamage : public ::testing::Test {
 protected:
  CheckpointDamage() {
    write_checkpoint(folder_.path(), 1);
    directory_ = write_checkpoint(folder_.path(), 2).directory;
    whole_ = *find_newest(folder_.path()).manifest;
  }

  /// Expects that step 1 is found, and that the reason why step 2 is not names the file.
  void expect_skipped(const std::string& file, const std::string& reason = {}) const {
    const Found found = find_newest(folder_.path());
    ASSERT_TRUE(found.manifest) << reason;
    EXPECT_EQ(found.manifest->step, 1) << reason;
    ASSERT_EQ(found.damaged.size(), 1u);
    EXPECT_EQ(found.damaged[0].directory, directory_);
    EXPECT_EQ(found.damaged[0].step, 2);
    const std::string& text = found.damaged[0].reason;
    EXPECT_NE(text.find((directory_ / file).string()), std::string::npos) << text;
    EXPECT_NE(text.find(reason), std::string::npos) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  }
  void expect_whole() const {
    const Found found = find_newest(folder_.path());
    EXPECT_EQ(found.manifest, whole_);
    EXPECT_TRUE(has_own_values(found));
  }

  Folder folder_;
  fs::path directory_;
  Manifest whole_;
};

/// Changes one byte of a file in its place.
void put_byte(const fs::path& file, std::size_t at, char byte) {
  std::fstream stream(file, std::ios::binary | std::ios::in | std::ios::out);
  stream.seekp(static_cast<long>(at));
  stream.put(byte);
}

TEST_F(CheckpointDamage, AFlippedByteAnywhere) {
  for (const char* name : {"rank-0000.safetensors", "rank-0001.safetensors", "manifest.json"}) {
    const fs::path file = directory_ / name;
    const std::string good = bytes_of(file);
    for (std::size_t i = 0; i < good.size(); i += round_stride) {
      for (const int flip : {0x01, 0x20, 0x80, 0xff}) {
        put_byte(file, i, static_cast<char>(good[i] ^ flip));
        SCOPED_TRACE(i);
        expect_skipped(name, name == std::string("manifest.json") ? "is damaged" : "has checksum");
        if (HasFailure()) return;
      }
      put_byte(file, i, good[i]);
    }
    expect_whole();
  }
}

TEST_F(CheckpointDamage, TruncatedAtAnyByte) {
  for (const char* name : {"rank-0000.safetensors", "rank-0001.safetensors", "manifest.json"}) {
    const fs::path file = directory_ / name;
    const std::string good = bytes_of(file);
    for (std::size_t cut = 1; cut <= good.size(); cut += round_stride) {
      const std::size_t size = good.size() - cut;
      fs::resize_file(file, size);
      SCOPED_TRACE(size);
      expect_skipped(name);
      if (HasFailure()) return;
    }
    overwrite(file, good + '\0');
    expect_skipped(name);
    overwrite(file, good);
    expect_whole();
  }
}

TEST_F(CheckpointDamage, BytesOfAnotherCheckpoint) {
  for (const char* name : {"rank-0000.safetensors", "rank-0001.safetensors", "manifest.json"}) {
    const std::string good = bytes_of(directory_ / name);
    fs::copy_file(folder_ / "step-00000001" / name, directory_ / name, fs::copy_options::overwrite_existing);
    expect_skipped(name);
    overwrite(directory_ / name, good);
  }
  // The whole of step 1, under the name of step 2.
  fs::remove_all(directory_);
  fs::copy(folder_ / "step-00000001", directory_);
  expect_skipped("manifest.json", "is of step 1");
}

TEST_F(CheckpointDamage, ABlockOfZeros) {
  const fs::path file = directory_ / "rank-0000.safetensors";
  std::string bad = bytes_of(file);
  std::fill(bad.end() - 16, bad.end(), '\0');
  overwrite(file, bad);
  expect_skipped("rank-0000.safetensors", "has checksum");
}

TEST_F(CheckpointDamage, MissingFiles) {
  for (const char* name : {"rank-0000.safetensors", "manifest.json"}) {
    const std::string good = bytes_of(directory_ / name);
    fs::remove(directory_ / name);
    expect_skipped(name, "is missing");
    fs::create_directory(directory_ / name);
    expect_skipped(name, "is ");
    fs::remove(directory_ / name);
    fs::create_symlink("nowhere", directory_ / name);
    expect_skipped(name, "is missing");
    fs::remove(directory_ / name);
    overwrite(directory_ / name, good);
  }
  expect_whole();
  // Files that could be read without end, or would fill the memory.
  for (const char* name : {"rank-0000.safetensors", "manifest.json"}) {
    const std::string good = bytes_of(directory_ / name);
    fs::remove(directory_ / name);
    ASSERT_EQ(mkfifo((directory_ / name).c_str(), 0600), 0);
    expect_skipped(name, "is not a file");
    fs::remove(directory_ / name);
    fs::create_symlink("/dev/zero", directory_ / name);
    expect_skipped(name, "is not a file");
    fs::remove(directory_ / name);
    overwrite(directory_ / name, good);
    fs::resize_file(directory_ / name, std::uintmax_t{1} << 40U);
    expect_skipped(name, name == std::string("manifest.json") ? "is too large" : "has 1099511627776 bytes");
    overwrite(directory_ / name, good);
  }
  expect_whole();
  fs::remove_all(directory_);
  fs::create_directory(directory_);
  expect_skipped("manifest.json", "is missing");
}

TEST_F(CheckpointDamage, NoneIsWhole) {
  for (const char* step : {"step-00000001", "step-00000002"})
    fs::resize_file(folder_ / step / "manifest.json", 9);
  const Found found = find_newest(folder_.path());
  EXPECT_FALSE(found.manifest);
  ASSERT_EQ(found.damaged.size(), 2u);
  EXPECT_EQ(found.damaged[0].step, 2);
  EXPECT_EQ(found.damaged[1].step, 1);
  EXPECT_TRUE(has_checkpoints(folder_.path()));
}

/// A manifest's text with the checksum of its content.
std::string signed_text(nlohmann::json json) {
  json.erase("crc32");
  std::string text = json.dump(1);
  text.resize(text.size() - 2);  // the end of the last line, and the closing brace
  return text + ",\n \"crc32\": \"" + checksum_text(checksum_of(text, checksum_start)) + "\"\n}\n";
}

TEST_F(CheckpointDamage, AManifestOfAnotherVersionOrContent) {
  const fs::path file = directory_ / "manifest.json";
  const nlohmann::json good = nlohmann::json::parse(bytes_of(file));
  overwrite(file, signed_text(good));
  expect_whole();
  struct Case {
    const char* place;
    nlohmann::json value;
    std::string reason;
  };
  nlohmann::json deep;
  for (int level = 0; level < 200; ++level) deep = nlohmann::json::array({std::move(deep)});
  const std::vector<Case> cases = {
      {"/run", deep, "is nested more than 100 levels deep"},
      {"/version", 2, "has version 2 of the format; this starpipe reads version 1"},
      {"/version", 0, "has version 0"},
      {"/version", "1", "\"version\""},
      {"/format", "other", "is not of a starpipe checkpoint"},
      {"/step", -2, "\"step\""},
      {"/step", 2.0, "\"step\""},
      {"/step", 18446744073709551615U, "\"step\""},
      {"/step", 3, "is of step 3"},
      {"/parts", 5, "\"parts\""},
      {"/parts/0", nullptr, "\"file\""},
      {"/parts/0/file", "../step-00000001/rank-0000.safetensors", "not a plain name"},
      {"/parts/0/file", "", "not a plain name"},
      {"/parts/0/file", "..", "not a plain name"},
      {"/parts/0/file", "rank-0001.safetensors", "twice"},
      {"/parts/0/bytes", -1, "\"bytes\""},
      {"/parts/0/crc32", "123", "\"crc32\""},
      {"/parts/0/crc32", 123, "\"crc32\""},
      {"/parts/0/tensors", nullptr, "\"tensors\""},
      {"/parts/0/tensors/0/name", "rank1.weight", "the tensor rank1.weight twice"},
      {"/parts/0/tensors/0/shape", nlohmann::json::array({-2, 3}), "\"shape\""},
      {"/parts/0/crc32", "zzzzzzzz", "\"crc32\""},
  };
  for (const auto& [place, value, reason] : cases) {
    nlohmann::json json = good;
    json[nlohmann::json::json_pointer(place)] = value;
    overwrite(file, signed_text(json));
    SCOPED_TRACE(place);
    const Found found = find_newest(folder_.path());
    ASSERT_EQ(found.damaged.size(), 1u);
    EXPECT_NE(found.damaged[0].reason.find(reason), std::string::npos) << found.damaged[0].reason;
  }
  for (const char* key : {"format", "version", "step", "run", "parts"}) {
    nlohmann::json json = good;
    json.erase(key);
    overwrite(file, signed_text(json));
    expect_skipped("manifest.json", key == std::string("format") ? "" : key);
  }
  for (const char* text : {"", "null", "[]", "{}", "5", "\"x\""}) {
    overwrite(file, text);
    expect_skipped("manifest.json");
  }
}

TEST_F(CheckpointDamage, AFileThatChangedAfterItWasFound) {
  const Found found = find_newest(folder_.path());
  CheckpointReader reader(found.directory, *found.manifest);
  const fs::path file = directory_ / "rank-0001.safetensors";
  std::string bad = bytes_of(file);
  bad.replace(bad.find("\"rank1.weight\""), 14, "\"rank1.weighT\"");
  overwrite(file, bad);
  std::vector<float> values(6);
  expect_input_error([&] { reader.read("rank1.weight", values); },
                     file.string() + ": tensor rank1.weight: is missing, or has another shape");
  CheckpointReader late(found.directory, *found.manifest);
  fs::remove(file);
  expect_input_error([&] { late.read("rank1.weight", values); }, file.string());
}

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
