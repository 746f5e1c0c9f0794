// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "base/files.hpp"

namespace starpipe {

/// A temporary folder in which a test writes files.
class Folder : public TemporaryFolder {
 public:
  Folder() {}  // so that a constant folder needs no initializer

  /// Writes a file in the folder. Returns its path.
  std::filesystem::path write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path() / name, std::ios::binary) << bytes;
    return path() / name;
  }
};

/// Returns the contents of a file.
inline std::string bytes_of(const std::filesystem::path& file) {
  std::ostringstream bytes;
  bytes << std::ifstream(file, std::ios::binary).rdbuf();
  return bytes.str();
}

}  // namespace starpipe
