// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "starpipe/base/error.hpp"

namespace starpipe::model::testing {

/// A temporary folder for one test, removed with its contents by the destructor.
class Folder {
 public:
  Folder() {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    path_ = std::filesystem::temp_directory_path() / ("starpipe_" + std::string(test->test_suite_name()) +
                                                      "_" + test->name() + "_" + std::to_string(getpid()));
    std::filesystem::create_directories(path_);
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  std::filesystem::path write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path_ / name, std::ios::binary) << bytes;
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

inline std::string bytes_of(const std::filesystem::path& file) {
  std::ostringstream bytes;
  bytes << std::ifstream(file, std::ios::binary).rdbuf();
  return bytes.str();
}

/// Expects that `call` throws an InputError whose message is one line and contains `part`.
template <class Call>
void expect_input_error(Call call, const std::string& part) {
  try {
    call();
    ADD_FAILURE() << "no InputError with " << part;
  } catch (const InputError& error) {
    EXPECT_THAT(std::string(error.what()), ::testing::HasSubstr(part));
    EXPECT_THAT(std::string(error.what()), ::testing::Not(::testing::HasSubstr("\n")));
  }
}

struct Result {
  int status = -1;
  std::string output;  // both streams
};

inline Result shell(const std::string& command) {
  Result result;
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return result;
  char buffer[4096];
  while (const std::size_t count = std::fread(buffer, 1, sizeof buffer, pipe)) {
    result.output.append(buffer, count);
  }
  const int status = pclose(pipe);
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return result;
}

/// True if the Python that the build found has NumPy.
inline bool have_numpy() { return shell(STARPIPE_PYTHON " -c 'import numpy'").status == 0; }

}  // namespace starpipe::model::testing
