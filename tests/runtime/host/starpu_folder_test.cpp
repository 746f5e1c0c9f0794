// SPDX-License-Identifier: Apache-2.0
// The folder of StarPU's measurements, where StarPU itself would abort.
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <unistd.h>

#include "base/environment.hpp"
#include "runtime/host/mpi.hpp"
#include "support/folder.hpp"

namespace starpipe::runtime {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

class StarpuFolders : public ::testing::Test {
 protected:
  const Folder folder_;
  const ScopedVariable itself_{"STARPU_PERF_MODEL_DIR", std::nullopt};
  const ScopedVariable cache_{"XDG_CACHE_HOME", std::nullopt};
  const ScopedVariable starpu_home_{"STARPU_HOME", std::nullopt};
  const ScopedVariable host_{"STARPU_HOSTNAME", "node7"};
  const ScopedVariable temporary_{"TMPDIR", folder_.path().string()};
  const fs::path own_ = folder_ / ("starpipe-" + std::to_string(geteuid()));
};

TEST_F(StarpuFolders, AreMadeAndOtherwiseLeftAlone) {
  const ScopedVariable home("HOME", (folder_ / "home").string());
  const StarpuFolder found = find_starpu_folder();
  EXPECT_THAT(found.own.string() + found.line + found.problem, IsEmpty());
  EXPECT_TRUE(fs::is_empty(folder_ / "home/.starpu/sampling/bus")) << "no probe is left";
  EXPECT_FALSE(fs::exists(own_));
}

TEST_F(StarpuFolders, ThatCannotBeMadeAreReplaced) {
  const std::string file = folder_.write("file", "").string();
  for (const char* variable : {"HOME", "STARPU_HOME", "XDG_CACHE_HOME", "STARPU_PERF_MODEL_DIR"}) {
    const ScopedVariable set(variable, file);
    const StarpuFolder found = find_starpu_folder();
    EXPECT_EQ(found.own, own_);
    EXPECT_THAT(found.problem, IsEmpty());
    EXPECT_THAT(found.line,
                StartsWith(std::string(variable) + ": StarPU cannot write to its folder " + file));
    EXPECT_THAT(found.line,
                HasSubstr("are in " + own_.string() + " now (free space there, or set STARPU_HOME"));
    EXPECT_TRUE(fs::is_directory(sampling_folder(own_) / "bus"));
    EXPECT_EQ(fs::status(own_).permissions(), fs::perms::owner_all);
  }
}

TEST_F(StarpuFolders, OfOthersAreNotTaken) {
  const ScopedVariable home("HOME", folder_.write("file", "").string());
  fs::create_directory(folder_ / "elsewhere");
  fs::create_directory_symlink(folder_ / "elsewhere", own_);  // in the folder for temporary files anybody may
  const StarpuFolder found = find_starpu_folder();
  EXPECT_EQ(found.own.filename(), own_.filename());
  EXPECT_NE(found.own, own_);
  EXPECT_THAT(found.problem, IsEmpty());
  EXPECT_TRUE(fs::is_empty(folder_ / "elsewhere"));
}

// StarPU aborts when it reads such a file, so every later run would.
TEST_F(StarpuFolders, LoseFilesThatAFullDiskHasCutShort) {
  const ScopedVariable home("HOME", folder_.path().string());
  const fs::path sampling = folder_ / ".starpu/sampling";
  fs::create_directories(sampling / "bus");
  fs::create_directories(sampling / "codelets/45");
  const auto write = [&](const std::string& name, const std::string& text) {
    std::ofstream(sampling / name) << text;
    fs::last_write_time(sampling / name, fs::file_time_type::clock::now() - std::chrono::hours(1));
  };
  write("bus/node7.affinity", "");
  write("bus/node7.config", "# Current con");
  write("bus/node7.latency", "# \t0\n");
  write("bus/node70.affinity", "");
  write("codelets/45/gemm.node7", "");
  write("codelets/45/gelu.node7", "45\n");
  write("notes", "");
  EXPECT_THAT(find_starpu_folder().line, IsEmpty());
  for (const char* broken : {"bus/node7.affinity", "bus/node7.config", "codelets/45/gemm.node7"})
    EXPECT_FALSE(fs::exists(sampling / broken)) << broken;
  for (const char* other : {"bus/node7.latency", "bus/node70.affinity", "codelets/45/gelu.node7", "notes"})
    EXPECT_TRUE(fs::exists(sampling / other)) << other;
}

TEST_F(StarpuFolders, WithFilesThatAreNotOfStarPUAreReplaced) {
  const ScopedVariable home("HOME", folder_.path().string());
  const fs::path links = folder_ / ".starpu/sampling/bus";
  fs::create_directories(links / "node7.affinity");
  const auto line_about = [](const fs::path& file) {
    return AllOf(StartsWith("HOME: StarPU cannot read " + file.string() + "; its measurements"),
                 HasSubstr("(remove it, or set STARPU_HOME to another folder)"));
  };
  EXPECT_THAT(find_starpu_folder().line, line_about(links / "node7.affinity"));
  fs::remove(links / "node7.affinity");
  std::ofstream(links / "node7.latency") << "notes of mine\n";
  const StarpuFolder found = find_starpu_folder();
  EXPECT_THAT(found.line, line_about(links / "node7.latency"));
  EXPECT_EQ(found.own, own_);
  EXPECT_TRUE(fs::exists(links / "node7.latency"));
}

}  // namespace
}  // namespace starpipe::runtime
