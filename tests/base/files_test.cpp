// SPDX-License-Identifier: Apache-2.0
#include "starpipe/base/files.hpp"

#include <array>
#include <filesystem>
#include <string>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace starpipe {
namespace {

namespace fs = std::filesystem;

/// A folder of the test's own, removed at its end.
class Files : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "starpipe-files-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path folder_;
};

TEST_F(Files, AnExistingFileIsReplacedAndALinkStaysALink) {
  write_file("-o", folder_ / "a", "old");
  fs::create_symlink("a", folder_ / "link");
  write_file("-o", folder_ / "link", "new");
  EXPECT_EQ(read_file(folder_ / "a"), "new");
  EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 2) << "a and link";
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

}  // namespace
}  // namespace starpipe
