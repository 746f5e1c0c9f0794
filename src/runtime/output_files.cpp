// SPDX-License-Identifier: Apache-2.0
#include "output_files.hpp"

#include <fstream>
#include <stdexcept>

#include <fmt/format.h>
#include <unistd.h>

#include "starpipe/plan/error.hpp"

namespace starpipe::runtime {

void check_writable(const std::filesystem::path& file, const std::string& option) {
  const auto folder = file.has_parent_path() ? file.parent_path() : std::filesystem::path(".");
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error)) {
    throw InputError(fmt::format("{} {}: there is no folder {}", option, file.string(), folder.string()));
  }
  if (std::filesystem::is_directory(file, error)) {
    throw InputError(fmt::format("{} {}: is a folder", option, file.string()));
  }
  if (access(folder.c_str(), W_OK) != 0) {
    throw InputError(fmt::format("{} {}: cannot write in {}", option, file.string(), folder.string()));
  }
}

void write_whole_file(const std::filesystem::path& file, const std::string& text) {
  std::filesystem::path temporary = file;
  temporary += fmt::format(".{}.tmp", getpid());
  {
    std::ofstream out(temporary, std::ios::binary);
    out << text;
    out.close();
    if (!out) {
      std::error_code ignored;
      std::filesystem::remove(temporary, ignored);
      throw std::runtime_error(fmt::format("cannot write {}", file.string()));
    }
  }
  std::filesystem::rename(temporary, file);
}

}  // namespace starpipe::runtime
