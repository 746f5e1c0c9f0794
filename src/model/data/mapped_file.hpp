// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace starpipe::model {

/// A whole file, read only. It is mapped, so that it may be larger than memory and the ranks of a node share
/// one copy.
class MappedFile {
 public:
  /// Throws InputError with the file when it is missing, unreadable or no regular file.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  [[nodiscard]] std::span<const unsigned char> bytes() const { return bytes_; }

 private:
  std::span<const unsigned char> bytes_;
};

}  // namespace starpipe::model
