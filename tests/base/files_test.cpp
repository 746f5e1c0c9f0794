// SPDX-License-Identifier: Apache-2.0
#include "base/files.hpp"

#include <array>
#include <csignal>
#include <filesystem>
#include <functional>
#include <new>
#include <ostream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "starpipe/base/error.hpp"
#include "support/folder.hpp"
#include "support/message_of.hpp"

namespace starpipe {
namespace {

namespace fs = std::filesystem;

class Files : public ::testing::Test {
 protected:
  [[nodiscard]] auto files() const {
    return std::distance(fs::directory_iterator(folder_.path()), fs::directory_iterator());
  }

  Folder folder_;
};

TEST_F(Files, AnExistingFileIsReplacedAndALinkStaysALink) {
  write_file("-o", folder_ / "a", "old");
  fs::create_symlink("a", folder_ / "link");
  write_file("-o", folder_ / "link", "new");
  EXPECT_EQ(read_file(folder_ / "a"), "new");
  EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
  EXPECT_EQ(files(), 2) << "a and link";
}

// As /dev/stdout is when a program's standard output is a temporary file without a name.
TEST_F(Files, ALinkToADeletedFileIsWrittenThroughAndNotReplaced) {
  const int file = ::open((folder_ / "deleted").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_GE(file, 0);
  fs::create_symlink("/proc/self/fd/" + std::to_string(file), folder_ / "link");
  fs::remove(folder_ / "deleted");
  require_writable("-o", folder_ / "link");
  write_file("-o", folder_ / "link", "text");
  EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
  std::array<char, 8> text{};
  EXPECT_EQ(::pread(file, text.data(), text.size(), 0), 4);
  EXPECT_STREQ(text.data(), "text");
  ::close(file);
}

// A run of hours must not lose its report to the name of a temporary file, nor find out at its end that the
// name is too long.
TEST_F(Files, ANameMayBeAsLongAsTheFileSystemAllows) {
  const std::string longest(255, 'a');
  require_writable("-o", folder_ / longest);
  write_file("-o", folder_ / longest, "text");
  EXPECT_EQ(read_file(folder_ / longest), "text");
  EXPECT_EQ(files(), 1);
  EXPECT_THROW(require_writable("-o", folder_ / (longest + "a")), InputError);
}

// A limit of the process, put back at the end of the scope.
class Limit {
 public:
  Limit(decltype(RLIMIT_FSIZE) resource, rlim_t max) : resource_(resource) {
    getrlimit(resource_, &before_);
    const rlimit now{max, before_.rlim_max};
    setrlimit(resource_, &now);
  }
  ~Limit() { setrlimit(resource_, &before_); }
  Limit(const Limit&) = delete;
  Limit& operator=(const Limit&) = delete;

 private:
  decltype(RLIMIT_FSIZE) resource_;
  rlimit before_{};
};

// Expects that `write` throws an exception of a failure, not of bad input.
void expect_failure(const std::function<void()>& write, const std::string& word) {
  try {
    write();
    ADD_FAILURE() << "no exception";
  } catch (const InputError& error) {
    ADD_FAILURE() << "not a mistake of the user: " << error.what();
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr(word));
  }
}

TEST_F(Files, AFileThatGrowsTooLargeLeavesNothing) {
  write_file("-o", folder_ / "a", "old");
  std::signal(SIGXFSZ, SIG_IGN);
  {
    const Limit limit(RLIMIT_FSIZE, 4096);
    expect_failure([&] { write_file("-o", folder_ / "a", std::string(100'000, 'x')); }, "too large");
    expect_failure([&] { write_file("-o", folder_ / "b", std::string(100'000, 'x')); }, "-o: cannot write");
  }
  std::signal(SIGXFSZ, SIG_DFL);
  EXPECT_EQ(read_file(folder_ / "a"), "old");
  EXPECT_EQ(files(), 1) << "a alone";
}

// /proc lets the superuser write, and has no room for files.
TEST_F(Files, ADirectoryWithoutRoomForFilesIsRefusedBeforehand) {
  EXPECT_THAT(message_of([] { require_writable("-o", "/proc/x"); }),
              ::testing::StartsWith("-o: cannot write /proc/x: no file can be made in /proc: "));
  require_writable("-o", folder_ / "a");
  EXPECT_EQ(files(), 0) << "the trial leaves nothing";
}

// As `docker run -v report.json:/report.json` does.
TEST_F(Files, AFileThatIsMountedAloneIsWritten) {
  write_file("-o", folder_ / "outside", "an old and longer text");
  write_file("-o", folder_ / "inside", "");
  const std::string inside = folder_ / "inside";
  if (mount((folder_ / "outside").c_str(), inside.c_str(), nullptr, MS_BIND, nullptr) != 0)
    GTEST_SKIP() << "no file can be mounted here";
  require_writable("-o", inside);
  write_file("-o", inside, "new");
  EXPECT_EQ(files(), 2) << "no temporary file is left";
  umount(inside.c_str());
  EXPECT_EQ(read_file(folder_ / "outside"), "new");
}

TEST_F(Files, AFullDeviceIsAFailure) {
  expect_failure([&] { write_file("-o", "/dev/full", "text"); }, "No space left");
}

TEST_F(Files, AnExistingFileKeepsItsModeAndALinkToNothingIsFollowed) {
  write_file("-o", folder_ / "private", "a");
  fs::permissions(folder_ / "private", fs::perms::owner_read | fs::perms::owner_write);
  write_file("-o", folder_ / "private", "b");
  EXPECT_EQ(fs::status(folder_ / "private").permissions(), fs::perms::owner_read | fs::perms::owner_write);
  fs::create_symlink("target", folder_ / "link");
  write_file("-o", folder_ / "link", "c");
  EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
  EXPECT_EQ(read_file(folder_ / "target"), "c");
  fs::create_symlink("circle", folder_ / "circle");
  EXPECT_THROW(write_file("-o", folder_ / "circle", "d"), InputError);
}

// Reading the first bytes of this file gives an error of the device, as a broken disk does.
TEST_F(Files, AReadErrorNamesTheFile) {
  EXPECT_THAT(message_of([] { read_file("/proc/self/mem"); }),
              ::testing::HasSubstr("/proc/self/mem: Input/output error"));
}

TEST_F(Files, AReadErrorEndsTheReadablePart) {
  EXPECT_EQ(readable_part("/proc/self/mem"), "");
  EXPECT_EQ(readable_part(folder_ / "absent"), "");
  write_file("--out", folder_ / "a", std::string_view("text\0more", 9));
  EXPECT_EQ(readable_part(folder_ / "a"), std::string("text\0more", 9));
}

// They have no end.
TEST_F(Files, DevicesAreRefused) {
  for (const char* file : {"/dev/zero", "/dev/urandom", "/dev/null"}) {
    EXPECT_EQ(message_of([&] { read_file(file); }),
              std::string(file) + ": is a device; a file or a pipe is expected");
  }
}

TEST_F(Files, HugeOnesAreRefused) {
  write_file("-o", folder_ / "huge", "a");
  fs::resize_file(folder_ / "huge", (std::uintmax_t{1} << 30U) + 1);  // takes no room on the disk
  EXPECT_THAT(message_of([&] { read_file(folder_ / "huge"); }),
              ::testing::HasSubstr("huge: has more than 1 GiB; a text file is expected"));
}

TEST_F(Files, TooManyOpenFilesAreAFailure) {
  const int next = ::dup(STDERR_FILENO);
  ::close(next);
  const Limit limit(RLIMIT_NOFILE, static_cast<rlim_t>(next));
  expect_failure([&] { write_file("-o", folder_ / "a", "text"); }, "Too many open files");
}

TEST_F(Files, AnExceptionOfTheWriterLeavesNothing) {
  EXPECT_THROW(write_file("-o", folder_ / "a",
                          [](std::ostream& out) {
                            out << "half";
                            throw std::bad_alloc();
                          }),
               std::bad_alloc);
  EXPECT_TRUE(fs::is_empty(folder_.path()));
}

TEST_F(Files, APipeWhoseReaderEndsIsAnErrorAndNoSignal) {
  ASSERT_EQ(mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  std::thread reader([&] { close(open((folder_ / "pipe").c_str(), O_RDONLY | O_CLOEXEC)); });
  constexpr std::size_t more_than_a_pipe_holds = 4 << 20;
  EXPECT_THAT(message_of<std::runtime_error>(
                  [&] { write_file("-o", folder_ / "pipe", std::string(more_than_a_pipe_holds, 'x')); }),
              ::testing::HasSubstr("Broken pipe"));
  reader.join();
}

TEST(Suffix, IsOneOfThoseExpectedOrMissing) {
  constexpr std::array<std::string_view, 2> suffixes = {".json", ".txt"};
  for (const char* name :
       {"a.json", "a.JSON", "b.c/a.Txt", "a", "b.png/a", ".json", "/dev/stdout", "-", "/dev/fd/1"}) {
    EXPECT_NO_THROW(require_suffix("-o", name, suffixes)) << name;
  }
  for (const char* name : {"a.png", "a.json.gz", "a.", "a.jso", "a.jsonx"}) {
    EXPECT_THROW(require_suffix("-o", name, suffixes), InputError) << name;
  }
  EXPECT_EQ(message_of([&] { require_suffix("-o", "a.PNG", suffixes); }),
            "-o: a.PNG ends in .PNG, expected .json, .txt or no suffix");
  EXPECT_EQ(suffix_of("x.y.SVG"), ".svg");
}

TEST(StandardOutput, HasTwoNames) {
  EXPECT_TRUE(is_standard_output("-"));
  EXPECT_TRUE(is_standard_output("/dev/stdout"));
  EXPECT_FALSE(is_standard_output("./-"));
  ::testing::internal::CaptureStdout();
  print("before\n");
  write_file("-o", "-", "text\n");
  write_file("-o", "/dev/stdout", "more\n");
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "before\ntext\nmore\n");
}

}  // namespace
}  // namespace starpipe
